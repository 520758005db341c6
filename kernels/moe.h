// What the kernels of a mixture of experts hand each other.
#pragma once
#include "device.h"

struct ExpertTile {  // 16 bytes: consecutive positions of one expert
  i32 expert;
  i32 first;
  i32 count;
  i32 reserved;
};

#define MAX_RANKS 16   // experts of a row, the shared one too
