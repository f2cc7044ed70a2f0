// open a new file beside OUT, write, fsync, rename, fsync the directory.
#include "weights/safetensors_writer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/partial_name.hpp"
#include "weights/replaced_file.hpp"
#include "weights/safetensors.hpp"
#include "weights/text.hpp"

namespace monomoe {
namespace {

Error write_error(std::string_view action, const std::string& path) {
  return bad_input(fmt::format("cannot {} {}: {}; the older file, if any, is unchanged", action, printable(path), std::strerror(errno)));
}

Result<uint64_t> spec_bytes(const TensorSpec& spec) {
  uint64_t elements = 1;
  bool wrong = false;
  for (const int64_t extent : spec.shape) {
    wrong |= extent < 0 || __builtin_mul_overflow(elements, static_cast<uint64_t>(extent), &elements);
  }
  uint64_t bits = 0;
  wrong |= __builtin_mul_overflow(elements, static_cast<uint64_t>(dtype_bits(spec.dtype)), &bits) || bits % 8 != 0;
  if (wrong) {
    return usage_error(fmt::format("tensor \"{}\": {} with shape {} is no whole number of bytes below 2^61", printable(spec.name),
                                   dtype_name(spec.dtype), shape_text(spec.shape)));
  }
  return bits / 8;
}

// The name as JSON text. A name that is not UTF-8 has none: written with other bytes in their place nobody would find the tensor again.
Result<std::string> quoted_name(const std::string& name) {
  if (name.empty()) return usage_error("a tensor has an empty name; give every tensor a name");
  try {
    return nlohmann::ordered_json(name).dump();
  } catch (const nlohmann::ordered_json::type_error&) {
    return usage_error(fmt::format("tensor name \"{}\" is not UTF-8, which names in a safetensors file must be; rename the tensor",
                                   printable(name)));
  }
}

struct Header {
  std::string text;
  uint64_t data_bytes = 0;
};

Result<Header> make_header(const std::vector<TensorSpec>& tensors, const std::map<std::string, std::string>& metadata) {
  Header header;
  // Text around dumped strings: an ordered JSON object searches linearly on insertion, and a checkpoint has many names.
  header.text = "{";
  if (!metadata.empty()) {
    constexpr auto kReplace = nlohmann::ordered_json::error_handler_t::replace;
    header.text += "\"__metadata__\":" + nlohmann::ordered_json(metadata).dump(-1, ' ', false, kReplace);
  }
  std::set<std::string_view> names;
  for (const TensorSpec& spec : tensors) {
    if (spec.name == "__metadata__" || !names.insert(spec.name).second) {
      return usage_error(fmt::format("tensor name \"{}\" is reserved or used twice", printable(spec.name)));
    }
    Result<std::string> name = quoted_name(spec.name);
    if (!name) return name.error();
    Result<uint64_t> bytes = spec_bytes(spec);
    if (!bytes) return bytes.error();
    const uint64_t begin = header.data_bytes;
    if (__builtin_add_overflow(begin, bytes.value(), &header.data_bytes)) return usage_error("the tensors' bytes do not fit 64 bits");
    std::string shape = "[";
    for (size_t i = 0; i < spec.shape.size(); ++i) shape += fmt::format("{}{}", i == 0 ? "" : ",", spec.shape[i]);
    header.text += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":{}],\"data_offsets\":[{},{}]}}", header.text.size() > 1 ? "," : "",
                               name.value(), dtype_name(spec.dtype), shape, begin,
                               header.data_bytes);
  }
  header.text += "}";
  while (header.text.size() % 8 != 0) header.text += ' ';
  if (header.text.size() > kMaxSafetensorsHeader) return usage_error("the tensors' names and shapes need a header above 100 MB");
  return header;
}

}  // namespace

Result<SafetensorsWriter> SafetensorsWriter::create(const std::string& path, std::vector<TensorSpec> tensors,
                                                    const std::map<std::string, std::string>& metadata) {
  Result<Header> header = make_header(tensors, metadata);
  if (!header) return header.error();
  Result<std::string> target = replaced_file(path);
  if (!target) return target.error();
  SafetensorsWriter writer;
  writer.path_ = target.take();
  writer.declared_ = header.value().data_bytes;
  for (int attempt = 0; attempt < kPartialAttempts && (attempt == 0 || errno == EEXIST) && writer.fd_ < 0; ++attempt) {
    writer.partial_ = partial_name(writer.path_);
    writer.fd_ = ::open(writer.partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
  }
  if (writer.fd_ < 0) return write_error("create", writer.partial_);
  const std::string& text = header.value().text;
  uint8_t length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<uint8_t>(text.size() >> (8 * i));
  if (Result<void> done = writer.write_all(length, sizeof length); !done) return done.error();
  if (Result<void> done = writer.write_all(reinterpret_cast<const uint8_t*>(text.data()), text.size()); !done) return done.error();
  return writer;
}

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&& other) noexcept
    : path_(std::move(other.path_)),
      partial_(std::move(other.partial_)),
      fd_(std::exchange(other.fd_, -1)),
      declared_(other.declared_),
      written_(other.written_),
      file_bytes_(other.file_bytes_),
      checksum_(std::move(other.checksum_)) {}

SafetensorsWriter::~SafetensorsWriter() { discard(); }

void SafetensorsWriter::discard() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(partial_.c_str());
  fd_ = -1;
}

Result<void> SafetensorsWriter::write_all(const uint8_t* data, size_t count) {
  checksum_.update({data, count});
  file_bytes_ += count;
  while (count > 0) {
    const ssize_t done = ::write(fd_, data, count);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) {
      Error error = write_error("write", partial_);
      discard();
      return error;
    }
    data += done;
    count -= static_cast<size_t>(done);
  }
  return {};
}

Result<void> SafetensorsWriter::append(std::span<const uint8_t> data) {
  if (fd_ < 0) return usage_error(fmt::format("{}: nothing can be appended after an error or after finish", printable(path_)));
  if (data.size() > declared_ - written_) {
    Error error = usage_error(
        fmt::format("{}: {} bytes appended, the declared tensors have {}", printable(path_), written_ + data.size(), declared_));
    discard();
    return error;
  }
  if (Result<void> done = write_all(data.data(), data.size()); !done) return done;
  written_ += data.size();
  return {};
}

Result<void> SafetensorsWriter::finish() {
  if (fd_ < 0) return usage_error(fmt::format("{}: already finished, or failed before", printable(path_)));
  auto give_up = [this](Error error) {
    discard();
    return error;
  };
  if (written_ != declared_) {
    return give_up(usage_error(fmt::format("{}: {} bytes appended, the declared tensors have {}", printable(path_), written_, declared_)));
  }
  if (::fsync(fd_) != 0) return give_up(write_error("write to disk", partial_));
  if (std::rename(partial_.c_str(), path_.c_str()) != 0) return give_up(write_error("rename into place", partial_));
  ::close(fd_);
  fd_ = -1;
  // The new name itself must survive a crash; a directory that cannot be synced (some network file systems) is not an error.
  const size_t slash = path_.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : slash == 0 ? "/" : path_.substr(0, slash);
  if (const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); fd >= 0) {
    (void)::fsync(fd);
    ::close(fd);
  }
  return {};
}

Result<void> write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                               const std::map<std::string, std::string>& metadata) {
  std::vector<TensorSpec> specs;
  for (const NamedTensor& tensor : tensors) {
    Result<uint64_t> bytes = spec_bytes(tensor.spec);
    if (!bytes) return bytes.error();
    if (bytes.value() != tensor.data.size()) {
      return usage_error(fmt::format("tensor \"{}\": {} bytes given, its shape {} needs {}", printable(tensor.spec.name),
                                     tensor.data.size(), shape_text(tensor.spec.shape), bytes.value()));
    }
    specs.push_back(tensor.spec);
  }
  Result<SafetensorsWriter> writer = SafetensorsWriter::create(path, std::move(specs), metadata);
  if (!writer) return writer.error();
  for (const NamedTensor& tensor : tensors) {
    if (Result<void> done = writer.value().append(tensor.data); !done) return done;
  }
  return writer.value().finish();
}

}  // namespace monomoe
