// Checked standard output and text forms of values.
#include "output.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "failure.hpp"

namespace monomoe::cli {

void keep_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // In this order the lowest free number is the stream's own.
    if (fcntl(stream, F_GETFD) < 0) (void)open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

void print(std::string_view text, const std::string& written) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return;
  throw Failure(ExitCode::kBadInput, fmt::format("standard output cannot be written: {}{}", std::strerror(errno),
                                              written.empty() ? "" : "; " + written + " was written and is whole"));
}

void print_json(const Json& json, const std::string& written) {
  // Names come from files: bytes that are not UTF-8 are replaced, so that the output is JSON whatever the input was.
  print(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n", written);
}

Json parse_report(const char* text) {
  Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object()) throw Failure(ExitCode::kInternal, "the library's report is not a JSON object");
  return json;
}

namespace {

std::string scalar_text(const Json& value) {
  if (value.is_string()) return printable(value.get<std::string>());
  if (value.is_number_float()) return fmt::format("{:.6g}", value.get<double>());
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_null()) return "-";
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool is_flat(const Json& value) {
  for (const Json& item : value)
    if (item.is_structured()) return false;
  return true;
}

}  // namespace

std::string inline_text(const Json& json) {
  if (!json.is_structured()) return scalar_text(json);
  std::string text;
  for (const auto& [key, value] : json.items()) {
    if (!text.empty()) text += ", ";
    std::string item = inline_text(value);
    if (value.is_array()) item = fmt::format("[{}]", item);
    if (value.is_object()) item = fmt::format("{{{}}}", item);
    text += json.is_object() ? fmt::format("{} {}", key, item) : item;
  }
  return text;
}

bool says_nothing(const Json& value) {
  if (value.is_structured()) {
    for (const Json& item : value)
      if (!says_nothing(item)) return false;
    return true;
  }
  return value.is_null() || (value.is_number() && value.get<double>() == 0);
}

std::string fields_text(const Json& json, int indent) {
  std::string text;
  size_t width = 0;
  for (const auto& [key, value] : json.items()) width = std::max(width, json.is_object() ? key.size() : 1);
  for (const auto& [key, value] : json.items()) {
    const std::string name = json.is_object() ? key : "-";
    const bool nested = value.is_structured() && !(value.is_array() && is_flat(value));
    text += nested ? fmt::format("{:{}}{}\n{}", "", indent, name, fields_text(value, indent + 2))
                   : fmt::format("{:{}}{:<{}}  {}\n", "", indent, name, width, inline_text(value));
  }
  return text;
}

std::string bytes_text(double bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(units); ++unit) bytes /= 1024;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, units[unit]);
}

std::string seconds_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.{}f} us", seconds * 1e6, seconds == 0 || seconds >= 1e-4 ? 0 : seconds >= 1e-5 ? 1 : 2);
  if (seconds < 1) return fmt::format("{:.1f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

std::string list_text(std::span<const int64_t> values, size_t most) {
  std::string text;
  for (size_t i = 0; i < values.size() && i < most; ++i) text += fmt::format("{}{}", i ? ", " : "", values[i]);
  if (values.size() > most) text += ", ...";
  return text;
}

std::string shape_text(std::span<const int64_t> dims) { return fmt::format("[{}]", list_text(dims)); }

std::string format_word(monomoe_format format) {
  switch (format) {
    case MONOMOE_FP8: return "fp8";
    case MONOMOE_NVFP4: return "nvfp4";
    case MONOMOE_MXFP4: return "mxfp4";
    case MONOMOE_BF16: return "bf16";
  }
  return "unknown";
}

std::string backend_word(monomoe_backend backend) {
  switch (backend) {
    case MONOMOE_BACKEND_AUTO: return "auto";
    case MONOMOE_BACKEND_CPU: return "cpu";
    case MONOMOE_BACKEND_CUDA: return "cuda";
  }
  return "unknown";
}

}  // namespace monomoe::cli
