// A safetensors file as a header tree and data, for mutators: taken apart leniently, laid out anew so that only what was changed is wrong.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "json_mutator.hpp"

namespace monomoe::fuzz {

struct TensorFile {
  Json header = Json::object();
  std::string data;
};

extern const Vocabulary kTensorWords;

// Nothing where the bytes are no length, JSON object and data.
std::optional<TensorFile> split_file(const uint8_t* bytes, size_t size);

// Writes data_offsets one after the other from dtypes and shapes, and sizes the data to fit; at most 256 KiB of it.
void lay_out(TensorFile& file, Random& random);

// The file's bytes; now and then with a length that is wrong or spaces behind the header.
std::string join_file(const TensorFile& file, Random& random);

// One change of the header or the data, most times laid out anew.
void mutate_file(TensorFile& file, Random& random);

}  // namespace monomoe::fuzz
