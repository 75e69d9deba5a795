// What both convolutions are made of: vectors of floats, and products of which a tile stays in registers.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>

// Of the work on a tile: GCC takes up to twice as long for one large function with all sizes of tiles.
#define SEPARATE __attribute__((noinline)) static

#ifdef __AVX512F__
constexpr int kWide = 16, kTile = 12;  // floats a register, rows of a tile: two registers each, 24 of 32
#else
constexpr int kWide = 8, kTile = 6;  // 12 of 16
#endif
constexpr int kNarrowTile = 12;  // rows of a tile of one register each

template <int W>
struct Vector {
  typedef float Type __attribute__((vector_size(4 * W), aligned(4)));
};

typedef Vector<kWide>::Type Floats;

// Floats without values, with a register behind them, from the beginning of a cache line on: a register that lies in two
// lines takes twice as long to read or write.
class Room {
 public:
  explicit Room(int64_t count) : count_(count), lines_(new Line[(count + kWide) / 16 + 1]) {}
  float* data() const { return lines_[0].floats; }
  float& operator[](int64_t i) const { return data()[i]; }
  void Clear() const { std::fill(data(), data() + count_, 0.0f); }

 private:
  struct alignas(64) Line {
    float floats[16];
  };
  int64_t count_;
  std::unique_ptr<Line[]> lines_;
};

// Steps between rows that an address cannot hold: x86 adds one index times 1, 2, 4 or 8, so that one pointer serves three
// rows. Where the step is a constant of the program, one serves all. The compiler would keep an offset for each row, in
// memory.
template <int R, typename Step>
constexpr int kRowsOfPointer = std::is_integral<Step>::value ? 3 : R;

// The sums of a tile: rows r < R at a + r a_row, features in N registers of W, of which the last one starts at b_last.
// Both operands advance with the sum.
template <int W, int N, int R, typename Step>
static inline void Accumulate(typename Vector<W>::Type (&sums)[R][N], const float* a, Step a_row, int64_t a_next,
                              const float* b, int64_t b_next, int64_t count, int64_t b_last = (N - 1) * W) {
  typedef typename Vector<W>::Type V;
  constexpr int kRows = kRowsOfPointer<R, Step>, kPointers = (R + kRows - 1) / kRows;
  const float* rows[kPointers];
  for (int p = 0; p < kPointers; ++p) {
    rows[p] = a + p * kRows * a_row;
    asm("" : "+r"(rows[p]));
  }
  for (int64_t i = 0; i < count; ++i, b += b_next) {
    V right[N];
    for (int v = 0; v < N; ++v) right[v] = *reinterpret_cast<const V*>(b + (v + 1 < N ? v * W : b_last));
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < N; ++v) sums[r][v] += rows[r / kRows][r % kRows * a_row] * right[v];
#pragma GCC unroll 16
    for (int p = 0; p < kPointers; ++p) rows[p] += a_next;
  }
}

// `count` floats, none if it is negative, and zeros.
static inline Floats LoadSome(const float* from, int64_t count) {
  Floats value = {};
  if (count >= kWide) return *reinterpret_cast<const Floats*>(from);
  std::memcpy(&value, from, 4 * std::max<int64_t>(count, 0));
  return value;
}

// The first `count` of W floats, none if it is negative.
template <int W>
static inline void StoreSome(float* to, typename Vector<W>::Type value, int64_t count) {
  if (count >= W) {
    std::memcpy(to, &value, sizeof value);
    return;
  }
#ifdef __AVX512VL__  // without <immintrin.h>, which takes half a second to compile
  const uint16_t mask = (1u << std::max<int64_t>(count, 0)) - 1;
  asm("vmovups %1, %0%{%2%}" : "+m"(*reinterpret_cast<float(*)[W]>(to)) : "v"(value), "Yk"(mask));
#else
  for (int i = 0; i < W; ++i)
    if (i < count) to[i] = value[i];
#endif
}

// Calls body with a compile-time number of rows.
template <int R, typename Body>
static inline void WithRows(int64_t rows, Body&& body) {
  if (rows == R) {
    body(std::integral_constant<int, R>());
  } else if constexpr (R > 1) {
    WithRows<R - 1>(rows, body);
  }
}

// Cuts `count` into the fewest tiles, of equal size but for the last.
template <int R = kTile, typename Body>
static inline void Tiles(int64_t count, Body&& body) {
  const int64_t tiles = (count + R - 1) / R, size = (count + tiles - 1) / tiles;
  for (int64_t first = 0; first < count; first += size)
    WithRows<R>(std::min(size, count - first), [&](auto rows) { body(first, rows); });
}
