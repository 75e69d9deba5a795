// Two bilinear maps on a CPU, the convolution and its gradient for the kernel, in single precision.
//
//   Convolve:        y[g, n, oy, ox, f] = sum_{ky, j} x[g, n, s oy + ky, (s ox) C + j] k[g, ky, j, f]
//   KernelGradient:  k[g, ky, j, f] = sum_{n, oy, ox} x[g, n, s oy + ky, (s ox) C + j] y[g, n, oy, ox, f]
//
// with j = 0 .. kw C - 1 running over kernel columns and channels, which lie side by side in a row of x. Images come
// padded. A tile of pixels (or of kernel rows j) times features stays in registers while the sum runs; no window of
// the image is ever copied. The gradient for the image is a convolution, and made of one by the caller.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

#ifdef __AVX512F__
constexpr int kWide = 16, kTile = 12;  // floats a register, rows of a tile: 24 of 32 registers hold sums
#else
constexpr int kWide = 8, kTile = 6;  // 12 of 16
#endif

template <int W>
struct Vector {
  typedef float Type __attribute__((vector_size(4 * W), aligned(4)));
};

struct Shape {
  int64_t images, height, width, channels, rows, columns, features, out_height, out_width, stride;
  int64_t run() const { return columns * channels; }
};

// The sums of a tile: rows r < R at a + r step, features in N registers of W. Both operands advance with the sum.
template <int W, int N, int R>
static inline void Accumulate(typename Vector<W>::Type (&sums)[R][N], const float* a, int64_t a_row, int64_t a_next,
                              const float* b, int64_t b_next, int64_t count) {
  typedef typename Vector<W>::Type V;
  for (int64_t i = 0; i < count; ++i, a += a_next, b += b_next) {
    V right[N];
    for (int v = 0; v < N; ++v) right[v] = *reinterpret_cast<const V*>(b + v * W);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < N; ++v) sums[r][v] += a[r * a_row] * right[v];
  }
}

template <int W, int N, int R>
static void ConvolveTile(const Shape& s, const float* x, const float* kernel, float* y, int64_t features) {
  typedef typename Vector<W>::Type V;
  V sums[R][N] = {};
  for (int64_t ky = 0; ky < s.rows; ++ky)
    Accumulate<W, N, R>(sums, x + ky * s.width * s.channels, s.stride * s.channels, 1, kernel + ky * s.run() * W * N,
                        W * N, s.run());
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    V line[N];
    for (int v = 0; v < N; ++v) line[v] = sums[r][v];
    std::memcpy(y + r * s.features, line, 4 * features);
  }
}

template <int W, int N, int R>
static void GradientTile(const Shape& s, const float* x, const float* y, int64_t y_pixel, float* kernel,
                         int64_t features) {
  typedef typename Vector<W>::Type V;
  V sums[R][N] = {};
  for (int64_t oy = 0; oy < s.out_height; ++oy)
    Accumulate<W, N, R>(sums, x + s.stride * oy * s.width * s.channels, 1, s.stride * s.channels,
                        y + oy * s.out_width * y_pixel, y_pixel, s.out_width);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    float line[W * N];
    for (int v = 0; v < N; ++v) *reinterpret_cast<V*>(line + v * W) = sums[r][v];
    for (int64_t f = 0; f < features; ++f) kernel[r * s.features + f] += line[f];
  }
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
template <typename Body>
static inline void Tiles(int64_t count, Body&& body) {
  const int64_t tiles = (count + kTile - 1) / kTile, size = (count + tiles - 1) / tiles;
  for (int64_t first = 0; first < count; first += size)
    WithRows<kTile>(std::min(size, count - first), [&](auto rows) { body(first, rows); });
}

// Features in panels of W N, the last filled up with zeros.
template <int W, int N>
static void Pack(const float* from, int64_t lines, int64_t features, int64_t first, float* to) {
  const int64_t count = std::min<int64_t>(W * N, features - first);
  for (int64_t line = 0; line < lines; ++line) {
    std::memcpy(to + line * W * N, from + line * features + first, 4 * count);
    std::fill(to + line * W * N + count, to + (line + 1) * W * N, 0.0f);
  }
}

template <int W, int N>
static void Convolve(const Shape& s, const float* x, const float* kernel, float* y) {
  std::vector<float> panel(s.rows * s.run() * W * N);
  for (int64_t f = 0; f < s.features; f += W * N) {
    Pack<W, N>(kernel, s.rows * s.run(), s.features, f, panel.data());
    const int64_t features = std::min<int64_t>(W * N, s.features - f);
    for (int64_t line = 0; line < s.images * s.out_height; ++line) {
      const int64_t image = line / s.out_height, oy = line % s.out_height;
      const float* from = x + (image * s.height + s.stride * oy) * s.width * s.channels;
      float* to = y + line * s.out_width * s.features + f;
      Tiles(s.out_width, [&](int64_t ox, auto rows) {
        ConvolveTile<W, N, rows.value>(s, from + s.stride * ox * s.channels, panel.data(), to + ox * s.features,
                                       features);
      });
    }
  }
}

template <int W, int N>
static void KernelGradient(const Shape& s, const float* x, const float* y, float* kernel) {
  const int64_t pixels = s.out_height * s.out_width;
  std::vector<float> panel(pixels * W * N);
  std::fill(kernel, kernel + s.rows * s.run() * s.features, 0.0f);
  for (int64_t image = 0; image < s.images; ++image)
    for (int64_t f = 0; f < s.features; f += W * N) {
      Pack<W, N>(y + image * pixels * s.features, pixels, s.features, f, panel.data());
      const int64_t features = std::min<int64_t>(W * N, s.features - f);
      for (int64_t ky = 0; ky < s.rows; ++ky) {
        const float* from = x + (image * s.height + ky) * s.width * s.channels;
        float* to = kernel + ky * s.run() * s.features + f;
        Tiles(s.run(), [&](int64_t j, auto rows) {
          GradientTile<W, N, rows.value>(s, from + j, panel.data(), W * N, to + j * s.features, features);
        });
      }
    }
}

using Buffer = ffi::Buffer<ffi::F32>;
using Result = ffi::Result<Buffer>;

// work(shape, x, second, out) for every group: a client of a batch, whose kernel is its own.
template <typename Work>
static ffi::Error EachGroup(const Buffer& x, const Buffer& second, Result& out, const Buffer& kernel, const Buffer& y,
                            int64_t stride, Work work) {
  const auto d = x.dimensions(), k = kernel.dimensions(), o = y.dimensions();
  const Shape s = {d[1], d[2], d[3], d[4], k[1], k[2], k[4], o[2], o[3], stride};
  for (int64_t g = 0; g < d[0]; ++g)
    work(s, x.typed_data() + g * (x.element_count() / d[0]), second.typed_data() + g * (second.element_count() / d[0]),
         out->typed_data() + g * (out->element_count() / d[0]));
  return ffi::Error::Success();
}

static ffi::Error ConvolveAll(Buffer x, Buffer kernel, int64_t stride, Result y) {
  return EachGroup(x, kernel, y, kernel, *y, stride, [](const Shape& s, auto... data) {
    if (s.features <= 8) Convolve<8, 1>(s, data...);
    else if (s.features <= kWide) Convolve<kWide, 1>(s, data...);
    else Convolve<kWide, 2>(s, data...);
  });
}

static ffi::Error KernelGradientAll(Buffer x, Buffer y, int64_t stride, Result kernel) {
  return EachGroup(x, y, kernel, *kernel, y, stride, [](const Shape& s, auto... data) {
    if (s.features <= 8) KernelGradient<8, 1>(s, data...);
    else if (s.features <= kWide) KernelGradient<kWide, 1>(s, data...);
    else KernelGradient<kWide, 2>(s, data...);
  });
}

#define BINDING ffi::Ffi::Bind().Arg<Buffer>().Arg<Buffer>().Attr<int64_t>("stride").Ret<Buffer>()
XLA_FFI_DEFINE_HANDLER_SYMBOL(convolve, ConvolveAll, BINDING);
XLA_FFI_DEFINE_HANDLER_SYMBOL(kernel_gradient, KernelGradientAll, BINDING);
