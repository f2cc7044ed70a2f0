// expect: a ring needs at least one stage
#include "plan/ring.h"

int main() { return static_cast<int>(monomoe::RingCursor<0>::producer().slot); }
