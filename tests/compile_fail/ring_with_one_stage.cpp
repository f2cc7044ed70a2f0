// compiles
#include "plan/ring.h"

int main() { return static_cast<int>(monomoe::RingCursor<1>::producer().slot); }
