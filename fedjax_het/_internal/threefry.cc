// Threefry 2x32 with 20 rounds (Salmon et al., 2011), as jax.random uses it: the words of key k for count c are the
// hash of the two halves of c. And orders of random bits.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "call_frame.h"

constexpr int kLanes = 8;
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));

template <int... kTurns>
static inline void Rounds(Words (&x)[2]) {
  ((x[0] += x[1], x[1] = (x[1] << kTurns | x[1] >> (32 - kTurns)) ^ x[0]), ...);
}

// Counts -> their words. A key is the same for all lanes, or one for each.
template <typename Key>
static inline void Hash(const Key (&key)[2], Words (&x)[2]) {
  const Key keys[] = {key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA};
  x[0] += keys[0];
  x[1] += keys[1];
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

// The counts of kLanes numbers in a row.
static inline void Count(uint64_t first, Words (&x)[2]) {
  x[1] = Words{0, 1, 2, 3, 4, 5, 6, 7} + uint32_t(first);
  x[0] = uint32_t(first >> 32) - (Words)(x[1] < uint32_t(first));  // a comparison that holds is -1
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
  for (int64_t g = 0; g < groups; ++g) {
    const uint32_t key[] = {keys[2 * g], keys[2 * g + 1]};
    for (int64_t i = 0; i < count; i += kLanes) {
      Words x[2];
      Count(uint64_t(starts[g]) + i, x);
      Hash(key, x);
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
  }
  return nullptr;
}

extern "C" XLA_FFI_Error* threefry_words(XLA_FFI_CallFrame* frame) { return Run<true>(frame); }
extern "C" XLA_FFI_Error* threefry_bits(XLA_FFI_CallFrame* frame) { return Run<false>(frame); }

// Keys [group, 2] and numbers [group, n] -> the first bits [group, n] of the key folded with each number.
extern "C" XLA_FFI_Error* threefry_fold(XLA_FFI_CallFrame* frame) {
  if (AnswersVersion(frame)) return nullptr;
  const auto numbers = Argument<const uint32_t>(frame, 1);
  const uint32_t* keys = Argument<const uint32_t>(frame, 0).data;
  const int64_t n = numbers.FromLast(1), size = numbers.Size();
  for (int64_t begin = 0; begin < size; begin += n, keys += 2) {
    const uint32_t key[] = {keys[0], keys[1]};
    for (int64_t i = 0; i < n; i += kLanes) {
      const int64_t some = 4 * std::min<int64_t>(kLanes, n - i);
      Words folded[2] = {}, x[2] = {};
      std::memcpy(&folded[1], numbers.data + begin + i, some);
      Hash(key, folded);
      Hash(folded, x);
      const Words mixed = x[0] ^ x[1];
      std::memcpy(Result<uint32_t>(frame, 0).data + begin + i, &mixed, some);
    }
  }
  return nullptr;
}

// Sorts by the upper 32 bits, and keeps the order of equal ones.
static void Sort(std::vector<uint64_t>& values) {
  std::vector<uint64_t> sorted(values.size());
  for (int shift = 32; shift < 64; shift += 8) {
    size_t places[257] = {};
    for (const uint64_t value : values) ++places[(value >> shift & 255) + 1];
    std::partial_sum(places, places + 256, places);
    for (const uint64_t value : values) sorted[places[value >> shift & 255]++] = value;
    values.swap(sorted);
  }
}

// Bits and flags [group, n] -> the places in the order of their bits; those without a flag come last.
extern "C" XLA_FFI_Error* sort_by_bits(XLA_FFI_CallFrame* frame) {
  if (AnswersVersion(frame)) return nullptr;
  const auto bits = Argument<const uint32_t>(frame, 0);
  const bool* is_there = Argument<const bool>(frame, 1).data;
  int32_t* order = Result<int32_t>(frame, 0).data;
  const int64_t n = bits.FromLast(1), size = bits.Size();
  std::vector<uint64_t> values;
  for (int64_t begin = 0; begin < size; begin += n) {
    values.clear();
    for (int64_t i = 0; i < n; ++i)
      if (is_there[begin + i]) values.push_back(uint64_t(bits.data[begin + i]) << 32 | i);
    Sort(values);
    for (const uint64_t value : values) *order++ = int32_t(value);
    for (int64_t i = 0; i < n; ++i)
      if (!is_there[begin + i]) *order++ = i;
  }
  return nullptr;
}
