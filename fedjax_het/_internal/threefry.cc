// Threefry 2x32 with 20 rounds (Salmon et al., 2011), as jax.random uses it: the words of key k for count c are the
// hash of the two halves of c.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "call_frame.h"

constexpr int kLanes = 8;
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));

template <int... kTurns>
static inline void Rounds(Words (&x)[2]) {
  ((x[0] += x[1], x[1] = (x[1] << kTurns | x[1] >> (32 - kTurns)) ^ x[0]), ...);
}

// The words of kLanes counts in a row.
static inline void Hash(const uint32_t* key, uint64_t first, Words (&x)[2]) {
  const uint32_t keys[] = {key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA};
  const Words low = Words{0, 1, 2, 3, 4, 5, 6, 7} + uint32_t(first);
  x[0] = uint32_t(first >> 32) - (Words)(low < uint32_t(first)) + keys[0];  // a comparison that holds is -1
  x[1] = low + keys[1];
#pragma GCC unroll 5
  for (uint32_t i = 1; i <= 5; ++i) {
    if (i % 2)
      Rounds<13, 15, 26, 6>(x);
    else
      Rounds<17, 29, 16, 24>(x);
    x[0] += keys[i % 3];
    x[1] += keys[(i + 1) % 3] + i;
  }
}

// Keys [group, 2] and first counts [group] -> both words of each count [group, count, 2], or their sum modulo 2.
template <bool kBoth>
static XLA_FFI_Error* Run(XLA_FFI_CallFrame* frame) {
  if (AnswersVersion(frame)) return nullptr;
  const auto result = Result<uint32_t>(frame, 0);
  const uint32_t *keys = Argument<uint32_t>(frame, 0).data, *starts = Argument<uint32_t>(frame, 1).data;
  uint32_t* to = result.data;
  const int axis = result.rank - 1 - kBoth;
  const int64_t count = result.dims[axis], groups = axis > 0 ? result.dims[0] : 1;
  for (int64_t g = 0; g < groups; ++g)
    for (int64_t i = 0; i < count; i += kLanes) {
      Words x[2];
      Hash(keys + 2 * g, uint64_t(starts[g]) + i, x);
      const int64_t some = std::min<int64_t>(kLanes, count - i);
      if constexpr (kBoth) {
        for (int64_t l = 0; l < some; ++l)
          for (int word = 0; word < 2; ++word) *to++ = x[word][l];
      } else {
        const Words mixed = x[0] ^ x[1];
        std::memcpy(to, &mixed, 4 * some);
        to += some;
      }
    }
  return nullptr;
}

extern "C" XLA_FFI_Error* threefry_words(XLA_FFI_CallFrame* frame) { return Run<true>(frame); }
extern "C" XLA_FFI_Error* threefry_bits(XLA_FFI_CallFrame* frame) { return Run<false>(frame); }
