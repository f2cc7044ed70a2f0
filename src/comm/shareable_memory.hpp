// Memory of one rank that the processes of other ranks can map: what each way of doing so has to offer.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "base/result.hpp"
#include "comm/file_descriptor.hpp"

namespace monomoe {

// What a peer needs to map the memory: an open file, or a handle of bytes.
struct ExportedMemory {
  int64_t bytes = 0;  // of the mapping: at least what was asked for
  std::array<uint8_t, 64> handle = {};
  FileDescriptor file;
};

class ShareableMemory {
 public:
  // Unmaps what it has mapped of others, then gives back its own.
  virtual ~ShareableMemory() = default;
  virtual void* own() const = 0;  // zero when made
  virtual Result<ExportedMemory> export_own() = 0;
  // Another rank's, mapped here until unmap_peers().
  virtual Result<void*> map(const ExportedMemory& theirs) = 0;
  virtual void unmap_peers() = 0;
  // Whether others may use the memory on after this rank has given it back.
  virtual bool outlives_owner() const = 0;
};

// Host memory: pages that are never touched cost nothing, and have no name in any folder.
Result<std::unique_ptr<ShareableMemory>> make_shared_pages(int64_t bytes);

}  // namespace monomoe
