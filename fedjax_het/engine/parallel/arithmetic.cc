// Arithmetic on many arrays, in blocks that stay in the cache, by a list of operations.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "call_frame.h"

constexpr int kLanes = 16;
constexpr int64_t kBlock = 512;  // numbers
typedef float Floats __attribute__((vector_size(4 * kLanes)));

// The order is that of `arithmetic_call.OPERATIONS`.
enum Operation : int32_t { kAdd, kSub, kMul, kDiv, kMax, kMin, kNeg, kSqrt, kSelect, kMulAdd };
enum Kind : int32_t { kArray, kScalar, kNumber };

struct Input {
  Kind kind;
  int32_t value;  // the position of the argument, or the bits of a number
};

struct Step {
  Operation operation;
  int32_t from[3];  // registers: inputs first, then the value of each step
  int32_t result;   // the position of the result, or -1
};

template <typename F>
static void Apply(int64_t n, float* y, const float* const* x, F f) {
  const float *from_a = x[0], *from_b = x[1], *from_c = x[2];
  const auto compute = [&](int64_t i, size_t size) __attribute__((always_inline)) {
    Floats a = {}, b = {}, c = {};
    std::memcpy(&a, from_a + i, size), std::memcpy(&b, from_b + i, size), std::memcpy(&c, from_c + i, size);
    a = f(a, b, c);
    std::memcpy(y + i, &a, size);
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) compute(i, sizeof(Floats));
  if (i < n) compute(i, (n - i) * sizeof(float));
}

static void Compute(Operation operation, int64_t n, float* y, const float* const* x) {
  using V = Floats;
  switch (operation) {
    case kAdd: return Apply(n, y, x, [](V a, V b, V) { return a + b; });
    case kSub: return Apply(n, y, x, [](V a, V b, V) { return a - b; });
    case kMul: return Apply(n, y, x, [](V a, V b, V) { return a * b; });
    case kDiv: return Apply(n, y, x, [](V a, V b, V) { return a / b; });
    case kMax: return Apply(n, y, x, [](V a, V b, V) { return a > b || a != a ? a : b; });
    case kMin: return Apply(n, y, x, [](V a, V b, V) { return a < b || a != a ? a : b; });
    case kNeg: return Apply(n, y, x, [](V a, V, V) { return -a; });
    case kSelect: return Apply(n, y, x, [](V a, V b, V c) { return a != 0 ? c : b; });
    case kMulAdd: return Apply(n, y, x, [](V a, V b, V c) { return a * b + c; });
    case kSqrt:
      for (int64_t i = 0; i < n; ++i) y[i] = __builtin_sqrtf(x[0][i]);
  }
}

static float ReadScalar(void* argument) {
  const auto& buffer = *static_cast<XLA_FFI_Buffer*>(argument);
  if (buffer.dtype == XLA_FFI_DataType_PRED) return *static_cast<bool*>(buffer.data);
  return *static_cast<float*>(buffer.data);
}

// Arrays and scalars -> arrays. Attribute: for each group of results of one size, the numbers of inputs and of steps, and
// both lists.
extern "C" XLA_FFI_Error* arithmetic(XLA_FFI_CallFrame* frame) {
  if (AnswersVersion(frame)) return nullptr;
  const auto& program = *static_cast<XLA_FFI_Array*>(frame->attrs.attrs[0]);
  const auto* next = static_cast<const int32_t*>(program.data);
  const auto* end = next + program.size;
  // Kept for the next call: allocating them takes about a twentieth of a step of logistic regression.
  thread_local std::vector<Floats> blocks;
  thread_local std::vector<float*> registers;
  thread_local std::vector<int64_t> strides;  // of a register from block to block
  while (next < end) {
    const int32_t num_inputs = next[0], num_steps = next[1], num_registers = num_inputs + num_steps;
    const auto* inputs = reinterpret_cast<const Input*>(next + 2);
    const auto* steps = reinterpret_cast<const Step*>(inputs + num_inputs);
    next = reinterpret_cast<const int32_t*>(steps + num_steps);
    blocks.resize(num_registers * kBlock / kLanes), registers.resize(num_registers), strides.assign(num_registers, 0);
    int64_t size = 0;
    for (int32_t i = 0; i < num_registers; ++i) {
      registers[i] = reinterpret_cast<float*>(&blocks[i * kBlock / kLanes]);
      if (i >= num_inputs) {
        if (steps[i - num_inputs].result < 0) continue;
        const auto result = Result<float>(frame, steps[i - num_inputs].result);
        registers[i] = result.data, strides[i] = kBlock, size = result.Size();
      } else if (inputs[i].kind == kArray) {
        registers[i] = Argument<float>(frame, inputs[i].value).data, strides[i] = kBlock;
      } else {
        float number;
        std::memcpy(&number, &inputs[i].value, sizeof number);
        if (inputs[i].kind == kScalar) number = ReadScalar(frame->args.args[inputs[i].value]);
        std::fill_n(registers[i], kBlock, number);
      }
    }
    for (int64_t begin = 0; begin < size; begin += kBlock) {
      for (int32_t s = 0; s < num_steps; ++s) {
        const float* from[3];
        for (int32_t k = 0; k < 3; ++k) from[k] = registers[steps[s].from[k]];
        Compute(steps[s].operation, std::min(kBlock, size - begin), registers[num_inputs + s], from);
      }
      for (int32_t i = 0; i < num_registers; ++i) registers[i] += strides[i];
    }
  }
  return nullptr;
}
