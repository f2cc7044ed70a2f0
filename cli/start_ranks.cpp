// The process that starts the ranks: it computes nothing, so that no rank's fault can hide behind another's.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "processes.hpp"

namespace monomoe::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kLastWords = std::chrono::seconds(2);  // how long ranks may take to end by themselves after one has failed
constexpr size_t kMostErrorText = 64 << 10;

std::vector<std::string>& arguments() {
  static std::vector<std::string> words;
  return words;
}

struct RankProcess {
  int32_t rank = 0;
  pid_t process = -1;
  int errors = -1;       // its standard error; -1: at its end
  std::string text;      // of it
  int status = 0;        // of waitpid
  bool is_stopped = false;  // by us
  int order = 0;         // of its end among all

  bool failed() const { return errors < 0 && !is_stopped && !(WIFEXITED(status) && WEXITSTATUS(status) == 0); }
};

// Of the worlds that process `parent` starts.
std::string world_prefix(pid_t parent) { return fmt::format("cli-{}-", parent); }

std::string random_name() {
  uint8_t random[12] = {};
  if (getentropy(random, sizeof(random)) != 0)
    throw Failure(ExitCode::kInternal, fmt::format("no random numbers for the ranks' meeting place: {}", std::strerror(errno)));
  std::string name = world_prefix(getpid());
  for (const uint8_t byte : random) name += fmt::format("{:02x}", byte);
  return name;
}

// In the new process, before exec: nothing but system calls.
[[noreturn]] void become_rank(pid_t parent, int32_t rank, int errors, char* const* words) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(static_cast<int>(ExitCode::kInternal));  // it was gone before the line above
  dup2(errors, STDERR_FILENO);
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  dup2(nothing, STDIN_FILENO);
  if (rank != 0) dup2(nothing, STDOUT_FILENO);
  execv("/proc/self/exe", words);
  constexpr char kSentence[] = "monomoe: a rank's process cannot be started: /proc/self/exe does not run; is /proc mounted?\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kSentence, sizeof(kSentence) - 1);
  _exit(static_cast<int>(ExitCode::kUnavailable));
}

RankProcess start(int32_t rank, const std::string& world) {
  std::vector<std::string> words = arguments();
  const std::string number = std::to_string(rank);
  words.insert(words.begin() + 2, {"--rank", number, "--world", world});  // behind the command's name
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  int ends[2] = {};
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw Failure(ExitCode::kUnavailable, fmt::format("rank {} cannot be started: {}; use fewer ranks or raise the limit of open files (ulimit -n)", rank,
                                                      std::strerror(errno)));
  }
  const pid_t parent = getpid(), process = fork();
  if (process == 0) become_rank(parent, rank, ends[1], pointers.data());
  const int error = errno;
  close(ends[1]);
  if (process < 0) {
    close(ends[0]);
    throw Failure(ExitCode::kUnavailable, fmt::format("rank {} cannot be started: {}; use fewer ranks or raise the limit of processes (ulimit -u)", rank,
                                                      std::strerror(error)));
  }
  return {rank, process, ends[0], {}, 0, false, 0};
}

void end(RankProcess& rank, int order) {
  close(rank.errors);
  rank.errors = -1;
  rank.order = order;
  while (waitpid(rank.process, &rank.status, 0) < 0 && errno == EINTR) {
  }
}

void stop_all(std::vector<RankProcess>& ranks) {
  for (RankProcess& rank : ranks) {
    if (rank.errors < 0) continue;
    kill(rank.process, SIGKILL);
    rank.is_stopped = true;
  }
}

void read_errors(RankProcess& rank, int order) {
  char piece[4096];
  const ssize_t got = read(rank.errors, piece, sizeof(piece));
  if (got > 0) rank.text.append(piece, std::min(static_cast<size_t>(got), kMostErrorText - std::min(kMostErrorText, rank.text.size())));
  else if (got == 0 || errno != EINTR) end(rank, order);
}

// Until every process has ended.
void watch(std::vector<RankProcess>& ranks) {
  Clock::time_point stop = Clock::time_point::max();
  for (int ended = 0; std::ranges::any_of(ranks, [](const RankProcess& rank) { return rank.errors >= 0; });) {
    std::vector<pollfd> entries;
    for (const RankProcess& rank : ranks) entries.push_back({rank.errors, POLLIN, 0});
    const bool is_failing = stop != Clock::time_point::max();
    const auto left = is_failing ? std::chrono::ceil<std::chrono::milliseconds>(stop - Clock::now()).count() : -1;
    const int ready = poll(entries.data(), entries.size(), is_failing ? static_cast<int>(std::max<int64_t>(left, 0)) : -1);
    if (ready == 0) {
      stop_all(ranks);
      stop = Clock::now() + std::chrono::hours(1);  // what is left ends at once
    }
    for (size_t i = 0; ready > 0 && i < ranks.size(); ++i) {
      if (entries[i].revents == 0) continue;
      read_errors(ranks[i], ended);
      ended += ranks[i].errors < 0 ? 1 : 0;
      if (!is_failing && ranks[i].failed()) stop = std::min(stop, Clock::now() + kLastWords);
    }
  }
}

// The rank to blame: one that was killed or refused comes before those that only noticed, and of these the first.
const RankProcess* cause(const std::vector<RankProcess>& ranks) {
  const auto weight = [](const RankProcess& rank) {
    const int kind = WIFSIGNALED(rank.status) ? 0 : WEXITSTATUS(rank.status) != static_cast<int>(ExitCode::kInternal) ? 1 : 2;
    return std::pair(kind, rank.order);
  };
  const RankProcess* worst = nullptr;
  for (const RankProcess& rank : ranks) {
    if (rank.failed() && (worst == nullptr || weight(rank) < weight(*worst))) worst = &rank;
  }
  return worst;
}

}  // namespace

void remember_arguments(int argc, char** argv) { arguments().assign(argv, argv + argc); }

void require_readable_again(const std::string& option, const std::string& path) {
  struct stat found = {};
  if (path.empty() || stat(path.c_str(), &found) != 0 || S_ISREG(found.st_mode) || S_ISDIR(found.st_mode)) return;  // what is wrong then, whoever reads it tells
  usage_error(fmt::format("{} {}: every rank's process reads it, so it cannot be a pipe; give a file", option, path));
}

void require_one_launcher(const ProcessOptions& options) {
  if (!options.processes || !options.is_rank() || options.world.starts_with(world_prefix(getppid()))) return;
  usage_error("--processes starts the ranks itself, and --rank says that another launcher does; leave one of them out");
}

ExitCode start_ranks(int32_t ranks) {
  const std::string world = random_name();
  std::vector<RankProcess> processes;
  try {
    for (int32_t rank = 0; rank < ranks; ++rank) processes.push_back(start(rank, world));
  } catch (...) {
    stop_all(processes);
    watch(processes);
    throw;
  }
  watch(processes);
  const RankProcess* blamed = cause(processes);
  if (blamed == nullptr) {
    for (const RankProcess& rank : processes) std::fputs(rank.text.c_str(), stderr);  // warnings of a driver, say
    return ExitCode::kOk;
  }
  if (WIFSIGNALED(blamed->status)) {
    const int signal = WTERMSIG(blamed->status);
    throw Failure(ExitCode::kInternal, fmt::format("{}rank {} (process {}) was ended by signal {} ({}); the other ranks were stopped, no output was put in place",
                                                   blamed->text, blamed->rank, blamed->process, signal, strsignal(signal)));
  }
  std::fputs(blamed->text.empty() ? fmt::format("monomoe: rank {} ended with exit code {} without a sentence\n", blamed->rank, WEXITSTATUS(blamed->status)).c_str()
                                  : blamed->text.c_str(),
             stderr);
  return static_cast<ExitCode>(WEXITSTATUS(blamed->status));
}

}  // namespace monomoe::cli
