// main of the bulk runs: the same targets and mutators without coverage, for many inputs in little time.
//   bulk_NAME RUNS SEED LONGEST [CORPUS_DIR]
// An input is a chain of changes from a sound document or from a file of the corpus that a guided run has left. What breaks is written to
// bulk_NAME.finding in the current directory; an input that takes more than ten seconds counts as a finding.
#include <sanitizer/asan_interface.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed);

namespace {

std::mt19937_64 engine;
std::string finding_path;
const uint8_t* current = nullptr;
size_t current_size = 0;

void keep_finding() {
  FILE* file = std::fopen(finding_path.c_str(), "wb");
  if (file != nullptr && current != nullptr) std::fwrite(current, 1, current_size, file);
  if (file != nullptr) std::fclose(file);
  std::fprintf(stderr, "finding: %s\n", finding_path.c_str());
}

std::vector<std::string> read_corpus(const char* directory) {
  std::vector<std::string> corpus;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    std::ifstream in(entry.path(), std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return corpus;
}

void run_one(const std::vector<uint8_t>& input, size_t size) {
  // A buffer of its very size, so that a read beyond it is seen.
  const std::unique_ptr<uint8_t[]> exact(new uint8_t[size]);
  std::memcpy(exact.get(), input.data(), size);
  current = exact.get();
  current_size = size;
  const auto begin = std::chrono::steady_clock::now();
  LLVMFuzzerTestOneInput(exact.get(), size);
  if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(10)) std::abort();
  current = nullptr;
}

}  // namespace

// libFuzzer's own mutation, in small: a byte changed, taken out or put in.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size) {
  const size_t at = size == 0 ? 0 : engine() % size;
  if (size > 0 && engine() % 3 == 0) {
    data[at] = static_cast<uint8_t>(engine());
  } else if (size > 1 && engine() % 2 == 0) {
    std::memmove(data + at, data + at + 1, size - at - 1);
    --size;
  } else if (size < max_size) {
    std::memmove(data + at + 1, data + at, size - at);
    data[at] = static_cast<uint8_t>(engine());
    ++size;
  }
  return size;
}

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const long runs = std::atol(argv[1]);
  engine.seed(std::strtoull(argv[2], nullptr, 10));
  std::vector<uint8_t> input(static_cast<size_t>(std::atol(argv[3])));
  const std::vector<std::string> corpus = argc > 4 ? read_corpus(argv[4]) : std::vector<std::string>();
  finding_path = std::filesystem::path(argv[0]).filename().string() + ".finding";
  __asan_set_death_callback(keep_finding);
  std::signal(SIGABRT, [](int) {
    keep_finding();
    std::_Exit(1);
  });
  std::vector<uint8_t> damaged;
  size_t size = 0;
  for (long run = 0; run < runs; ++run) {
    if (run % 500000 < 2) std::fprintf(stderr, "%s: %ld of %ld inputs\n", argv[0], run, runs);
    if (engine() % 4 == 0) {
      size = 0;
      if (!corpus.empty() && engine() % 2 == 0) {
        const std::string& start = corpus[engine() % corpus.size()];
        if (start.size() <= input.size()) std::memcpy(input.data(), start.data(), size = start.size());
      }
    }
    size = LLVMFuzzerCustomMutator(input.data(), size, input.size(), static_cast<unsigned>(engine()));
    run_one(input, size);
    if (++run == runs || size == 0) continue;
    // Making an input costs more than reading it: each is also read with one byte changed or cut off behind one.
    damaged = input;
    const size_t damaged_size = engine() % 2 == 0 ? engine() % size : LLVMFuzzerMutate(damaged.data(), size, damaged.size());
    run_one(damaged, damaged_size);
  }
  std::printf("%s: %ld inputs, no finding\n", argv[0], runs);
  return 0;
}
