// See memory_overlap.hpp. The system lists this process's mappings, with file and offset, in /proc/self/maps.
#include "comm/memory_overlap.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

namespace monomoe {
namespace {

// A stretch of addresses [begin, end) and the pages of a file behind it.
struct FilePages {
  uint64_t begin = 0, end = 0, offset = 0, inode = 0;
  unsigned major = 0, minor = 0;
};

struct CloseFile {
  void operator()(FILE* file) const { std::fclose(file); }
};

std::vector<FilePages> mapped_files() {
  std::vector<FilePages> mappings;
  const std::unique_ptr<FILE, CloseFile> file(std::fopen("/proc/self/maps", "re"));
  char line[4096];
  while (file != nullptr && std::fgets(line, sizeof(line), file.get()) != nullptr) {
    unsigned long begin = 0, end = 0, offset = 0, inode = 0;
    FilePages mapping;
    char rights[8] = {};
    if (std::sscanf(line, "%lx-%lx %7s %lx %x:%x %lu", &begin, &end, rights, &offset, &mapping.major, &mapping.minor, &inode) != 7) continue;
    if (inode == 0 || rights[3] != 's') continue;  // private pages are this process's own
    mapping.begin = begin;
    mapping.end = end;
    mapping.offset = offset;
    mapping.inode = inode;
    mappings.push_back(mapping);
  }
  return mappings;
}

// The parts of a rank's memory that are files.
std::vector<FilePages> parts_of(const std::vector<FilePages>& mappings, const void* peer, int64_t bytes) {
  const auto begin = reinterpret_cast<uint64_t>(peer), end = begin + static_cast<uint64_t>(bytes);
  std::vector<FilePages> parts;
  for (FilePages mapping : mappings) {
    if (mapping.begin >= end || mapping.end <= begin) continue;
    if (mapping.begin < begin) {
      mapping.offset += begin - mapping.begin;
      mapping.begin = begin;
    }
    mapping.end = std::min(mapping.end, end);
    parts.push_back(mapping);
  }
  return parts;
}

bool same_pages(const FilePages& a, const FilePages& b) {
  return a.major == b.major && a.minor == b.minor && a.inode == b.inode && a.offset < b.offset + (b.end - b.begin) && b.offset < a.offset + (a.end - a.begin);
}

}  // namespace

std::string overlap_of(std::span<void* const> peers, int64_t bytes) {
  const std::vector<FilePages> mappings = mapped_files();
  std::vector<std::vector<FilePages>> parts;
  for (size_t rank = 0; rank < peers.size(); ++rank) {
    parts.push_back(parts_of(mappings, peers[rank], bytes));
    for (size_t other = 0; other < rank; ++other) {
      const auto a = reinterpret_cast<uint64_t>(peers[other]), b = reinterpret_cast<uint64_t>(peers[rank]);
      if (a < b + static_cast<uint64_t>(bytes) && b < a + static_cast<uint64_t>(bytes))
        return fmt::format("options->peers[{}] and [{}] overlap: they are {} bytes apart and {} bytes long", other, rank, a < b ? b - a : a - b, bytes);
      for (const FilePages& one : parts[rank]) {
        if (std::ranges::any_of(parts[other], [&](const FilePages& two) { return same_pages(one, two); }))
          return fmt::format("options->peers[{}] and [{}] are mappings of the same pages", other, rank);
      }
    }
  }
  return {};
}

}  // namespace monomoe
