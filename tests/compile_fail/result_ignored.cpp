// expect: nodiscard
#include "base/result.hpp"

monomoe::Result<int> work() { return 1; }
int main() { work(); }
