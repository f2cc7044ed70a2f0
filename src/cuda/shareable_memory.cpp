// GPU memory that processes of other ranks map: virtual memory exported as a file descriptor, which stays alive as long as anybody maps it, or
// an allocation with a CUDA IPC handle, where the driver does not give such descriptors.
#include "comm/shareable_memory.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstring>
#include <utility>
#include <vector>

#include "cuda/backend.hpp"
#include "cuda/devices.hpp"
#include "cuda/status.hpp"

namespace monomoe::cuda {
namespace {

// The driver's functions, asked of the runtime: the library is not linked with the driver, so that it loads where there is none.
struct VirtualMemory {
  decltype(&cuGetErrorName) error_name = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free_address = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  decltype(&cuMemExportToShareableHandle) export_handle = nullptr;
  decltype(&cuMemImportFromShareableHandle) import_handle = nullptr;

  Result<void> check(CUresult status, const std::string& doing) const {
    if (status == CUDA_SUCCESS) return {};
    const char* name = nullptr;
    if (error_name(status, &name) != CUDA_SUCCESS || name == nullptr) name = "an unknown error";
    return unavailable(fmt::format("{}: the driver says {} ({})", doing, name, static_cast<int>(status)));
  }
};

template <class Function>
bool find(const char* name, Function& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t status = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
#else
  const cudaError_t status = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
  if (status != cudaSuccess) (void)cudaGetLastError();
  function = reinterpret_cast<Function>(found);
  return status == cudaSuccess && result == cudaDriverEntryPointSuccess && found != nullptr;
}

Result<VirtualMemory> find_virtual_memory() {
  VirtualMemory driver;
  const std::pair<const char*, bool> found[] = {
      {"cuGetErrorName", find("cuGetErrorName", driver.error_name)},
      {"cuMemGetAllocationGranularity", find("cuMemGetAllocationGranularity", driver.granularity)},
      {"cuMemCreate", find("cuMemCreate", driver.create)},
      {"cuMemRelease", find("cuMemRelease", driver.release)},
      {"cuMemAddressReserve", find("cuMemAddressReserve", driver.reserve)},
      {"cuMemAddressFree", find("cuMemAddressFree", driver.free_address)},
      {"cuMemMap", find("cuMemMap", driver.map)},
      {"cuMemUnmap", find("cuMemUnmap", driver.unmap)},
      {"cuMemSetAccess", find("cuMemSetAccess", driver.set_access)},
      {"cuMemExportToShareableHandle", find("cuMemExportToShareableHandle", driver.export_handle)},
      {"cuMemImportFromShareableHandle", find("cuMemImportFromShareableHandle", driver.import_handle)},
  };
  for (const auto& [name, is_there] : found) {
    if (!is_there) return unavailable(fmt::format("the driver lacks {}", name));
  }
  return driver;
}

// A piece of memory at an address of this process; whoever still maps it elsewhere keeps it alive.
class Mapped {
 public:
  Mapped() = default;
  Mapped(Mapped&& other) noexcept
      : driver_(other.driver_), handle_(std::exchange(other.handle_, 0)), address_(std::exchange(other.address_, 0)), bytes_(other.bytes_),
        is_mapped_(std::exchange(other.is_mapped_, false)) {}
  Mapped& operator=(Mapped&& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(handle_, other.handle_);
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    std::swap(is_mapped_, other.is_mapped_);
    return *this;
  }
  ~Mapped() {
    if (is_mapped_) driver_->unmap(address_, bytes_);
    if (address_ != 0) driver_->free_address(address_, bytes_);
    if (handle_ != 0) driver_->release(handle_);
  }

  // Takes the handle over, also when it fails.
  static Result<Mapped> make(const VirtualMemory& driver, CUmemGenericAllocationHandle handle, size_t bytes, int gpu) {
    Mapped mapped;
    mapped.driver_ = &driver;
    mapped.handle_ = handle;
    mapped.bytes_ = bytes;
    if (auto done = driver.check(driver.reserve(&mapped.address_, bytes, 0, 0, 0), fmt::format("reserving {} bytes of addresses", bytes)); !done)
      return done.error();
    if (auto done = driver.check(driver.map(mapped.address_, bytes, 0, handle, 0), fmt::format("mapping {} bytes", bytes)); !done) return done.error();
    mapped.is_mapped_ = true;
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = gpu;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (auto done = driver.check(driver.set_access(mapped.address_, bytes, &access, 1), fmt::format("letting GPU {} read and write them", gpu)); !done)
      return done.error();
    return Result<Mapped>(std::move(mapped));
  }

  CUmemGenericAllocationHandle handle() const { return handle_; }
  void* data() const { return reinterpret_cast<void*>(address_); }
  size_t bytes() const { return bytes_; }

 private:
  const VirtualMemory* driver_ = nullptr;
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr address_ = 0;
  size_t bytes_ = 0;
  bool is_mapped_ = false;
};

Result<void> clear(void* data, int64_t bytes) {
  if (auto done = check(cudaMemset(data, 0, static_cast<size_t>(bytes)), "clearing shared memory"); !done) return done;
  return check(cudaDeviceSynchronize(), "clearing shared memory");
}

class FileMemory final : public ShareableMemory {
 public:
  static Result<std::unique_ptr<ShareableMemory>> make(int gpu, int64_t bytes) {
    auto driver = find_virtual_memory();
    if (!driver) return driver.error();
    std::unique_ptr<FileMemory> memory(new FileMemory(driver.value(), gpu));
    const CurrentGpu current(gpu);
    if (auto done = check(cudaFree(nullptr), fmt::format("starting GPU {}", gpu)); !done) return done.error();  // makes the GPU's context
    const VirtualMemory& use = memory->driver_;
    CUmemAllocationProp wanted{};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.location.id = gpu;
    wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    size_t piece = 0;
    if (auto done = use.check(use.granularity(&piece, &wanted, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED), "asking for the page size"); !done) return done.error();
    const size_t room = (static_cast<size_t>(bytes > 0 ? bytes : 1) + piece - 1) / piece * piece;
    CUmemGenericAllocationHandle handle = 0;
    if (auto done = use.check(use.create(&handle, room, &wanted, 0), fmt::format("allocating {} bytes of GPU {} that other processes can map", room, gpu)); !done)
      return done.error();
    auto own = Mapped::make(use, handle, room, gpu);
    if (!own) return own.error();
    memory->own_ = own.take();
    if (auto done = clear(memory->own(), static_cast<int64_t>(room)); !done) return done.error();
    return std::unique_ptr<ShareableMemory>(std::move(memory));
  }
  ~FileMemory() override {
    const CurrentGpu current(gpu_);
    peers_.clear();
    own_ = Mapped();
  }

  void* own() const override { return own_.data(); }
  Result<ExportedMemory> export_own() override {
    int file = -1;
    auto done = driver_.check(driver_.export_handle(&file, own_.handle(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), "exporting memory as a file descriptor");
    if (!done) return done.error();
    ExportedMemory exported;
    exported.bytes = static_cast<int64_t>(own_.bytes());
    exported.file = FileDescriptor(file);
    return exported;
  }
  Result<void*> map(const ExportedMemory& theirs) override {
    const CurrentGpu current(gpu_);
    CUmemGenericAllocationHandle handle = 0;
    // The driver takes the descriptor as the value of a pointer.
    void* const file = reinterpret_cast<void*>(static_cast<uintptr_t>(theirs.file.get()));
    if (auto done = driver_.check(driver_.import_handle(&handle, file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), "importing memory from a file descriptor"); !done)
      return done.error();
    auto mapped = Mapped::make(driver_, handle, static_cast<size_t>(theirs.bytes), gpu_);
    if (!mapped) return mapped.error();
    peers_.push_back(mapped.take());
    return peers_.back().data();
  }
  void unmap_peers() override {
    const CurrentGpu current(gpu_);
    peers_.clear();
  }
  bool outlives_owner() const override { return true; }

 private:
  FileMemory(const VirtualMemory& driver, int gpu) : driver_(driver), gpu_(gpu) {}
  const VirtualMemory driver_;
  int gpu_;
  Mapped own_;
  std::vector<Mapped> peers_;
};

class IpcMemory final : public ShareableMemory {
 public:
  static Result<std::unique_ptr<ShareableMemory>> make(int gpu, int64_t bytes) {
    const CurrentGpu current(gpu);
    std::unique_ptr<IpcMemory> memory(new IpcMemory(gpu));
    auto own = DeviceBuffer::make(bytes, "memory that other processes can map");
    if (!own) return own.error();
    memory->own_ = own.take();
    if (auto done = clear(memory->own(), bytes); !done) return done.error();
    return std::unique_ptr<ShareableMemory>(std::move(memory));
  }
  ~IpcMemory() override {
    unmap_peers();
    const CurrentGpu current(gpu_);
    own_ = DeviceBuffer();
  }

  void* own() const override { return own_.data(); }
  Result<ExportedMemory> export_own() override {
    static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(ExportedMemory{}.handle));
    const CurrentGpu current(gpu_);
    cudaIpcMemHandle_t handle{};
    if (auto done = usable(cudaIpcGetMemHandle(&handle, own_.data()), "making a CUDA IPC handle"); !done) return done.error();
    ExportedMemory exported;
    exported.bytes = own_.bytes();
    std::memcpy(exported.handle.data(), &handle, sizeof(handle));
    return exported;
  }
  Result<void*> map(const ExportedMemory& theirs) override {
    const CurrentGpu current(gpu_);
    cudaIpcMemHandle_t handle{};
    std::memcpy(&handle, theirs.handle.data(), sizeof(handle));
    void* data = nullptr;
    auto done = usable(cudaIpcOpenMemHandle(&data, handle, cudaIpcMemLazyEnablePeerAccess),
                       "opening a CUDA IPC handle (which takes another process, and peer access)");
    if (!done) return done.error();
    peers_.push_back(data);
    return data;
  }
  void unmap_peers() override {
    const CurrentGpu current(gpu_);
    for (void* peer : peers_) cudaIpcCloseMemHandle(peer);
    peers_.clear();
  }
  bool outlives_owner() const override { return false; }

 private:
  explicit IpcMemory(int gpu) : gpu_(gpu) {}
  // Not a fault of the library: this machine does not share memory so.
  static Result<void> usable(cudaError_t status, const char* doing) {
    auto done = check(status, doing);
    if (done) return done;
    (void)cudaGetLastError();
    return unavailable(done.error().message);
  }
  int gpu_;
  DeviceBuffer own_;
  std::vector<void*> peers_;
};

}  // namespace

Result<std::unique_ptr<ShareableMemory>> make_shareable_memory(MemorySharing sharing, int gpu, int64_t bytes) {
  return sharing == MemorySharing::kFile ? FileMemory::make(gpu, bytes) : IpcMemory::make(gpu, bytes);
}

Result<int> usable_gpu(int gpu) {
  if (gpu >= 0) return gpu;
  if (auto got = check(cudaGetDevice(&gpu), "asking for the current GPU"); !got) return got.error();
  return gpu;
}

std::string why_no_peer_access(int gpu, std::string_view uuid) {
  int count = 0, can = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  for (int other = 0; other < count; ++other) {
    cudaDeviceProp device{};
    if (cudaGetDeviceProperties(&device, other) != cudaSuccess) continue;
    if (uuid != std::string_view(device.uuid.bytes, sizeof(device.uuid.bytes)) || other == gpu) continue;
    if (cudaDeviceCanAccessPeer(&can, gpu, other) == cudaSuccess && can != 0) continue;
    (void)cudaGetLastError();
    return fmt::format("GPU {} has no peer access to GPU {}", gpu, other);
  }
  (void)cudaGetLastError();
  return {};
}

}  // namespace monomoe::cuda
