// Whether all numbers of several arrays are finite.

#include <cstdint>
#include <cstring>

#include "call_frame.h"

constexpr int kLanes = 8;
constexpr uint32_t kExponent = 0x7F800000;  // all of its bits are set in infinity and NaN
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));

static bool IsFinite(const uint32_t* from, int64_t n) {
  Words found = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Words x;
    std::memcpy(&x, from + i, sizeof x);
    found |= (Words)((x & kExponent) == kExponent);
  }
  uint32_t any = 0;
  for (int lane = 0; lane < kLanes; ++lane) any |= found[lane];
  for (; i < n; ++i) any |= (from[i] & kExponent) == kExponent;
  return !any;
}

// Arrays of any shapes -> a boolean.
extern "C" XLA_FFI_Error* all_finite(XLA_FFI_CallFrame* frame) {
  if (AnswersVersion(frame)) return nullptr;
  bool is_finite = true;
  for (int64_t i = 0; i < frame->args.size && is_finite; ++i) {
    const auto array = Argument<const uint32_t>(frame, i);
    is_finite = IsFinite(array.data, array.Size());
  }
  *Result<bool>(frame, 0).data = is_finite;
  return nullptr;
}
