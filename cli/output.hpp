// Standard output, every write checked, and the words and units in it.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "monomoe/monomoe.h"

namespace monomoe::cli {

using Json = nlohmann::ordered_json;

// Call first. The next file, socket or shared memory that is opened gets the lowest free number: of a standard stream that was closed, and what is
// printed then lands there. So each closed one is opened, in the direction in which it is not used: a write fails as before, with a sentence.
void keep_standard_streams();

// Writes and flushes; throws Failure when the text did not arrive. `written` names what the command has put on disk by then: it stays.
void print(std::string_view text, const std::string& written = {});
void print_json(const Json& json, const std::string& written = {});

// A report of the library as JSON; throws Failure (internal) if it is none.
Json parse_report(const char* text);

// "key value" lines of any JSON object, nested objects indented: for reports whose fields may grow.
std::string fields_text(const Json& json, int indent = 2);
// "a 1, b {c 2}" on one line.
std::string inline_text(const Json& json);
// Zero, null, or nothing but these inside: not worth a word in a long table.
bool says_nothing(const Json& value);

std::string bytes_text(double bytes);      // "1.25 GiB"
std::string seconds_text(double seconds);  // "12.3 ms"
std::string list_text(std::span<const int64_t> values, size_t most = 16);  // "1, 2, 3"
std::string shape_text(std::span<const int64_t> dims);                     // "[64, 4096]"

std::string format_word(monomoe_format format);    // "nvfp4"
std::string backend_word(monomoe_backend backend);  // "cpu"

class Timer {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace monomoe::cli
