// Ranks in processes of their own: a command starts itself once for each rank (start_ranks), and each of these processes is one rank of a world
// (as_rank). A launcher that starts processes itself gives --rank and --world instead of --processes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "handles.hpp"
#include "monomoe/world.h"
#include "options.hpp"

namespace monomoe::cli {

// Call first: the ranks' processes get the same arguments.
void remember_arguments(int argc, char** argv);

// Starts `ranks` processes with this one's arguments, --rank and --world, and waits for all. Rank 0 has this process's standard output. When one
// fails the others are stopped; its sentence and exit code are this command's. If this process is killed, so are they.
ExitCode start_ranks(int32_t ranks);
// Refuses --processes together with --rank, unless this process was started by start_ranks.
void require_one_launcher(const ProcessOptions& options);
// The name of the world in which ranks meet for one of several parts of a run, a layer or a case; refused where it would be too long.
std::string world_of_part(const std::string& world, int64_t part);
// Refuses a file that cannot be read once for each rank; "" is fine.
void require_readable_again(const std::string& option, const std::string& path);

inline void leave_world(monomoe_world* world) { monomoe_world_leave(world, nullptr); }
using WorldHandle = std::unique_ptr<monomoe_world, Destroyer<leave_world>>;
using WorldMemory = std::unique_ptr<monomoe_world_memory, Destroyer<monomoe_world_memory_destroy>>;

// What a rank was given, by the name of the option.
using Settings = std::vector<std::pair<std::string, std::string>>;
inline std::string or_not_given(const std::string& word) { return word.empty() ? "not given" : word; }
// A file under one name, whatever path was given; pipes and the like are each process's own, and cannot be compared.
std::string file_given(const std::string& path);

// One rank inside its process.
class RankWorld {
 public:
  // Collective, like everything here.
  RankWorld(const std::string& name, int32_t ranks, int32_t rank, const ContextOptions& options);

  int32_t ranks() const { return ranks_; }
  int32_t rank() const { return rank_; }
  monomoe_world* handle() const { return world_.get(); }
  const monomoe_context_options& context_options() const { return placed_; }  // as monomoe_world_place completed them
  const std::string& why() const { return why_; }                             // this backend and these GPUs
  Context create_context() const;
  // Zeroed memory on each rank that all ranks write: the workspace's (of the backend), and the host's.
  WorldMemory symmetric_memory(int64_t bytes) const { return memory(placed_.backend, placed_.gpu, bytes); }
  WorldMemory host_memory(int64_t bytes) const { return memory(MONOMOE_BACKEND_CPU, 0, bytes); }
  void barrier() const;
  // Every rank's value.
  template <class T>
  std::vector<T> gather(const T& mine) const {
    std::vector<T> all(static_cast<size_t>(ranks_));
    check(monomoe_world_gather(handle(), &mine, sizeof(T), all.data()));
    return all;
  }
  void leave(const std::string& reason) { monomoe_world_leave(world_.release(), reason.c_str()); }
  // Rank 0 is about to write a file: it appears whole even if the process that started the ranks is killed meanwhile.
  void outlive_parent() const;

 private:
  WorldMemory memory(monomoe_backend backend, int32_t gpu, int64_t bytes) const;

  int32_t ranks_, rank_;
  WorldHandle world_;
  monomoe_context_options placed_ = {};
  std::string why_;
};

// Collective. Refuses ranks that were not given the same, naming the first that differs.
void require_same_arguments(const RankWorld& world, const Settings& settings);

// Joins the world as options say and runs body; if body fails the other ranks are told why.
ExitCode as_rank(const ProcessOptions& options, int32_t ranks, const ContextOptions& context, const std::function<ExitCode(RankWorld&)>& body);

}  // namespace monomoe::cli
