// The definition, with images that come padded:
//
//   y[n, oy, ox, f] = sum_{ky, j} x[n, s oy + ky, (s ox) C + j] k[ky, j, f]
//
// where j = 0 .. kw C - 1 runs over kernel columns and channels, which lie side by side in a row of x. A tile of pixels
// (or, for the gradient, of kernel rows j) times features stays in registers while the sum runs; no window of the image
// is ever copied.

#include "call_frame.h"
#include "tiles.h"

struct Shape {
  int64_t images, height, width, channels, rows, columns, features, out_height, out_width, stride;
  int64_t run() const { return columns * channels; }
};

template <int W, int N, int R>
SEPARATE void ConvolveTile(const Shape& s, const float* x, const float* kernel, float* y, int64_t features) {
  typedef typename Vector<W>::Type V;
  V sums[R][N] = {};
  for (int64_t ky = 0; ky < s.rows; ++ky)
    Accumulate<W, N, R>(sums, x + ky * s.width * s.channels, s.stride * s.channels, 1, kernel + ky * s.run() * W * N,
                        W * N, s.run());
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < N; ++v) StoreSome<W>(y + r * s.features + v * W, sums[r][v], features - v * W);
}

template <int W, int N, int R>
SEPARATE void GradientTile(const Shape& s, const float* x, const float* y, int64_t y_pixel, float* kernel,
                           int64_t features) {
  typedef typename Vector<W>::Type V;
  V sums[R][N] = {};
  for (int64_t oy = 0; oy < s.out_height; ++oy)
    Accumulate<W, N, R>(sums, x + s.stride * oy * s.width * s.channels, std::integral_constant<int64_t, 1>(),
                        s.stride * s.channels, y + oy * s.out_width * y_pixel, y_pixel, s.out_width);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r, kernel += s.features)
    if (features == W * N) {
      for (int v = 0; v < N; ++v) *reinterpret_cast<V*>(kernel + v * W) += sums[r][v];
    } else {
      float line[W * N];
      for (int v = 0; v < N; ++v) *reinterpret_cast<V*>(line + v * W) = sums[r][v];
      for (int64_t f = 0; f < features; ++f) kernel[f] += line[f];
    }
}

// Features in panels of W N. The last is filled up with the features of the next line, which are multiplied in vain, and
// in the last line with zeros.
template <int W, int N>
static void Pack(const float* from, int64_t lines, int64_t features, int64_t first, float* to) {
  const int64_t count = std::min<int64_t>(W * N, features - first);
  const int64_t whole = lines - (W * N - count + features - 1) / features;
  from += first;
  for (int64_t line = 0; line < lines; ++line, from += features, to += W * N) {
    if (line < whole)
      std::memcpy(to, from, 4 * W * N);
    else
      std::fill(std::copy(from, from + count, to), to + W * N, 0.0f);
  }
}

template <int W, int N>
static void Convolve(const Shape& s, const float* x, const float* kernel, float* y) {
  const Room panel(s.rows * s.run() * W * N);
  const float* end = y + s.images * s.out_height * s.out_width * s.features;
  for (int64_t f = 0; f < s.features; f += W * N) {
    Pack<W, N>(kernel, s.rows * s.run(), s.features, f, panel.data());
    const int64_t features = std::min<int64_t>(W * N, s.features - f);
    for (int64_t line = 0; line < s.images * s.out_height; ++line) {
      const int64_t image = line / s.out_height, oy = line % s.out_height;
      const float* from = x + (image * s.height + s.stride * oy) * s.width * s.channels;
      float* to = y + line * s.out_width * s.features + f;
      Tiles<N == 1 ? kNarrowTile : kTile>(s.out_width, [&](int64_t ox, auto rows) {
        // Whole registers where the next pixels, which follow, are written over what is too much.
        const bool has_room = features == s.features && end - (to + (ox + rows - 1) * s.features) >= W * N;
        ConvolveTile<W, N, rows.value>(s, from + s.stride * ox * s.channels, panel.data(), to + ox * s.features,
                                       has_room ? W * N : features);
      });
    }
  }
}

template <int W, int N>
static void KernelGradient(const Shape& s, const float* x, const float* y, float* kernel) {
  const int64_t pixels = s.out_height * s.out_width;
  const Room panel(pixels * W * N);
  std::fill(kernel, kernel + s.rows * s.run() * s.features, 0.0f);
  for (int64_t image = 0; image < s.images; ++image)
    for (int64_t f = 0; f < s.features; f += W * N) {
      const float* right = y + image * pixels * s.features;
      if (s.features != W * N) {
        Pack<W, N>(right, pixels, s.features, f, panel.data());
        right = panel.data();
      }
      const int64_t features = std::min<int64_t>(W * N, s.features - f);
      for (int64_t ky = 0; ky < s.rows; ++ky) {
        const float* from = x + (image * s.height + ky) * s.width * s.channels;
        float* to = kernel + ky * s.run() * s.features + f;
        Tiles<N == 1 ? kNarrowTile : kTile>(s.run(), [&](int64_t j, auto rows) {
          GradientTile<W, N, rows.value>(s, from + j, right, W * N, to + j * s.features, features);
        });
      }
    }
}

// work(features of a register, registers of a tile).
template <typename Work>
static void Fitting(int64_t features, Work&& work) {
  if (features <= 8)
    work(std::integral_constant<int, 8>(), std::integral_constant<int, 1>());
  else if (features <= kWide)
    work(std::integral_constant<int, kWide>(), std::integral_constant<int, 1>());
  else
    work(std::integral_constant<int, kWide>(), std::integral_constant<int, 2>());
}

static Shape Described(const Array<float>& x, const Array<float>& kernel, const Array<float>& y, int64_t stride) {
  return {x.FromLast(4),      x.FromLast(3),      x.FromLast(2), x.FromLast(1), kernel.FromLast(4),
          kernel.FromLast(3), kernel.FromLast(1), y.FromLast(3), y.FromLast(2), stride};
}

// x [..., n, h, w, c], kernel [..., kh, kw, c, f] -> [..., n, h', w', f]
extern "C" XLA_FFI_Error* direct_convolve(XLA_FFI_CallFrame* frame) {
  if (AnswersVersion(frame)) return nullptr;
  const Shape s = Described(Argument<float>(frame, 0), Argument<float>(frame, 1), Result<float>(frame, 0),
                            Attribute<int64_t>(frame, "stride"));
  return EachGroup(frame, 4, [&](auto... data) {
    Fitting(s.features, [&](auto w, auto n) { Convolve<w.value, n.value>(s, data...); });
  });
}

// x [..., n, h, w, c], the gradient for y [..., n, h', w', f] -> [..., kh, kw, c, f]
extern "C" XLA_FFI_Error* direct_kernel_gradient(XLA_FFI_CallFrame* frame) {
  if (AnswersVersion(frame)) return nullptr;
  const Shape s = Described(Argument<float>(frame, 0), Result<float>(frame, 0), Argument<float>(frame, 1),
                            Attribute<int64_t>(frame, "stride"));
  return EachGroup(frame, 4, [&](auto... data) {
    Fitting(s.features, [&](auto w, auto n) { KernelGradient<w.value, n.value>(s, data...); });
  });
}
