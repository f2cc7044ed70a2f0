// compiles
#include "base/result.hpp"

monomoe::Result<int> work() { return 1; }
int main() { return work().ok() ? 0 : 1; }
