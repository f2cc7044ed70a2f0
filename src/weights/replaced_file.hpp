// A file that is written under a name and then renamed onto it: the name of a link is not replaced, what it leads to is.
#pragma once

#include <string>

#include "base/result.hpp"

namespace monomoe {

// `path`, or where its links lead. Refused: a link to nothing, and one that leads through /dev or /proc, behind which is whatever the process has open.
Result<std::string> replaced_file(const std::string& path);

}  // namespace monomoe
