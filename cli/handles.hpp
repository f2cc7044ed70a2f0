// Owning pointers for the library's handles.
#pragma once

#include <memory>
#include <string>

#include "failure.hpp"
#include "monomoe/checkpoint.h"
#include "monomoe/monomoe.h"

namespace monomoe::cli {

template <auto destroy>
struct Destroyer {
  template <class T>
  void operator()(T* handle) const {
    destroy(handle);
  }
};

using Context = std::unique_ptr<monomoe_context, Destroyer<monomoe_context_destroy>>;
using Weights = std::unique_ptr<monomoe_weights, Destroyer<monomoe_weights_destroy>>;
using Workspace = std::unique_ptr<monomoe_workspace, Destroyer<monomoe_workspace_destroy>>;
using TensorFile = std::unique_ptr<monomoe_tensor_file, Destroyer<monomoe_tensor_file_close>>;
using Checkpoint = std::unique_ptr<monomoe_checkpoint, Destroyer<monomoe_checkpoint_close>>;
using Text = std::unique_ptr<char, Destroyer<monomoe_free_text>>;

inline Checkpoint open_checkpoint(const std::string& directory) {
  monomoe_checkpoint* handle = nullptr;
  check(monomoe_checkpoint_open(directory.c_str(), &handle), Origin::kFile);
  return Checkpoint(handle);
}

inline TensorFile open_tensor_file(const std::string& path) {
  monomoe_tensor_file* handle = nullptr;
  check(monomoe_tensor_file_open(path.c_str(), &handle), Origin::kFile);
  return TensorFile(handle);
}

inline monomoe_layer_info layer_info(const monomoe_checkpoint* checkpoint, int32_t layer) {
  monomoe_layer_info info = {};
  info.struct_size = sizeof(info);
  check(monomoe_checkpoint_layer_info(checkpoint, layer, &info));
  return info;
}

}  // namespace monomoe::cli
