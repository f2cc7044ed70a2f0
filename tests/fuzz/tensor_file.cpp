// Offsets are decided here and not by chance: a file whose only fault is one dtype or shape gets past all checks before that of the fault.
#include "tensor_file.hpp"

#include <algorithm>

#include "weights/dtype.hpp"

namespace monomoe::fuzz {
namespace {

constexpr uint64_t kMostData = 256 << 10;

uint64_t bytes_of(const Json& tensor) {
  if (!tensor.is_object() || !tensor.contains("dtype") || !tensor["dtype"].is_string() || !tensor.contains("shape") ||
      !tensor["shape"].is_array())
    return 0;
  const auto dtype = dtype_from_name(tensor["dtype"].get_ref<const std::string&>());
  uint64_t bits = dtype ? static_cast<uint64_t>(dtype_bits(*dtype)) : 8;
  for (const Json& extent : tensor["shape"]) {
    if (!extent.is_number_unsigned() || __builtin_mul_overflow(bits, extent.get<uint64_t>(), &bits) || bits > 8 * kMostData) return 0;
  }
  return bits / 8;
}

void write_length(std::string& out, uint64_t length) {
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(length >> (8 * i));
}

void change_data(std::string& data, Random& random) {
  if (data.empty() || random.one_in(4)) {
    data.resize(random.below(data.size() + 64));
    return;
  }
  constexpr int kBytes[] = {0, 1, 0x7f, 0x80, 0xff, 0xfe, 0x38};
  const size_t at = random.below(data.size());
  const size_t count = std::min(data.size() - at, random.one_in(2) ? size_t{1} : random.below(256));
  std::fill_n(data.begin() + static_cast<std::ptrdiff_t>(at), count,
              static_cast<char>(random.one_in(3) ? random.below(256) : static_cast<size_t>(random.pick(kBytes))));
}

}  // namespace

const Vocabulary kTensorWords = {
    {"dtype", "shape", "data_offsets", "__metadata__", "layers.0.ffn.experts.0.w1.weight", "layers.0.ffn.experts.0.w1.scale",
     "layers.0.ffn.experts.1.w2.weight", "layers.0.ffn.experts.0.w3.weight_scale", "layers.0.ffn.experts.0.w3.weight_scale_2",
     "model.layers.1.mlp.experts.0.gate_proj.weight", "layers.0.ffn.gate.weight", "layers.0.ffn.gate.bias", "layers.0.ffn.gate.tid2eid",
     "model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj", "mtp.0.ffn.experts.0.w1.weight",
     "layers.0.ffn.shared_experts.w1.weight", "layers.0.ffn.experts.0.packed", "format"},
    {"U8",
     "I8",
     "BF16",
     "F16",
     "F32",
     "F64",
     "I32",
     "I64",
     "U16",
     "BOOL",
     "F8_E4M3",
     "F8_E5M2",
     "F8_E8M0",
     "F4",
     "F6_E2M3",
     "F9",
     "f32",
     "C64",
     "pt",
     ".scale",
     "_scale_inv",
     ".weight_packed",
     ".weight_global_scale",
     "layers.",
     "experts.",
     "w1",
     "down_proj",
     "0",
     "99999"}};

std::optional<TensorFile> split_file(const uint8_t* bytes, size_t size) {
  if (size < 10) return std::nullopt;
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) length |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  if (length > size - 8) return std::nullopt;
  const char* text = reinterpret_cast<const char*>(bytes) + 8;
  TensorFile file;
  file.header = Json::parse(text, text + length, nullptr, false);
  if (!file.header.is_object()) return std::nullopt;
  file.data.assign(text + length, size - 8 - length);
  return file;
}

void lay_out(TensorFile& file, Random& random) {
  uint64_t cursor = 0;
  for (auto& [name, tensor] : file.header.items()) {
    if (name == "__metadata__" || !tensor.is_object()) continue;
    uint64_t bytes = bytes_of(tensor);
    if (cursor + bytes > kMostData) bytes = 0;
    tensor["data_offsets"] = {cursor, cursor + bytes};
    cursor += bytes;
  }
  const size_t old = file.data.size();
  file.data.resize(cursor);
  for (size_t i = old; i < file.data.size(); ++i) file.data[i] = static_cast<char>(random.one_in(16) ? random.below(256) : 0x38);
}

std::string join_file(const TensorFile& file, Random& random) {
  std::string header = write_json(file.header, random);
  if (random.one_in(16)) header.append(random.below(16), ' ');
  std::string out = std::string(8, '\0') + header + file.data;
  uint64_t length = header.size();
  if (random.one_in(32)) length += random.below(17) - 8;
  if (random.one_in(200)) length = uint64_t{1} << random.below(64);
  write_length(out, length);
  return out;
}

void mutate_file(TensorFile& file, Random& random) {
  if (random.one_in(6)) {
    change_data(file.data, random);
    if (random.one_in(2)) return;
  }
  mutate_json(file.header, kTensorWords, random);
  if (file.header.is_object() && !random.one_in(4)) lay_out(file, random);
}

}  // namespace monomoe::fuzz
