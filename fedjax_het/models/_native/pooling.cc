// The maximum of each window of an image, where windows lie side by side, and its gradient. From each pixel on, whole
// registers are read and written: what they hold beyond its channels is written again with the next pixels. The last
// register of a pixel, which alone holds more, comes first, before others write those channels of the next pixel.

#include "call_frame.h"
#include "tiles.h"

struct Shape {
  int64_t images, height, width, channels, rows, columns;  // of the image, and of the windows
  int64_t window_height, window_width;
};

// body(first channel, number of floats) for all channels of a pixel. The last pixels of a row, of which `left` floats are
// left, have no room for whole registers; elsewhere the number is a compile-time constant.
template <typename Body>
static inline void EachRegister(int64_t channels, int64_t left, Body&& body) {
  if ((channels + kWide - 1) / kWide * kWide <= left) {
    for (int64_t c = (channels - 1) / kWide * kWide; c >= 0; c -= kWide) body(c, std::integral_constant<int, kWide>());
  } else {
    for (int64_t c = 0; c < channels; c += kWide) body(c, std::min<int64_t>(kWide, channels - c));
  }
}

// work(height, width) of the windows, which are compile-time constants where they are two by two.
template <typename Work>
static inline void WithWindow(const Shape& s, Work&& work) {
  if (s.window_height == 2 && s.window_width == 2) {
    work(std::integral_constant<int, 2>(), std::integral_constant<int, 2>());
  } else {
    work(static_cast<int>(s.window_height), static_cast<int>(s.window_width));
  }
}

// The maxima, and the place of each in its window, row by row; the first of equal ones, and NaN before all.
static void Maxima(const Shape& s, const float* x, float* y, float* places) {
  const int64_t channels = s.channels, row_size = s.width * channels;
  WithWindow(s, [&](auto height, auto width) {
    for (int64_t n = 0; n < s.images; ++n)
      for (int64_t i = 0; i < s.rows; ++i) {
        const float* window = x + (n * s.height + i * height) * row_size;
        for (int64_t j = 0; j < s.columns; ++j, window += width * channels, y += channels, places += channels) {
          EachRegister(channels, (s.columns - j) * channels, [&](int64_t c, auto count) {
            Floats best = LoadSome(window + c, count);
            Floats place = {};
#pragma GCC unroll 2
            for (int a = 0; a < height; ++a)
#pragma GCC unroll 2
              for (int b = 0; b < width; ++b) {
                const Floats value = LoadSome(window + a * row_size + b * channels + c, count);
                const auto stays = (best >= value) | (best != best);
                best = stays ? best : value;
                place = stays ? place : Floats{} + static_cast<float>(a * width + b);
              }
            StoreSome<kWide>(y + c, best, count);
            StoreSome<kWide>(places + c, place, count);
          });
        }
      }
  });
}

// The gradient of every pixel, given that of the maxima.
static void Spread(const Shape& s, const float* gradient, const float* places, float* x) {
  const int64_t channels = s.channels, row_size = s.width * channels;
  WithWindow(s, [&](auto height, auto width) {
    const int64_t used = s.columns * width * channels, below = (s.height - s.rows * height) * row_size;
    for (int64_t n = 0; n < s.images; ++n, x += s.height * row_size) {
      for (int64_t i = 0; i < s.rows; ++i) {
        float* top = x + i * height * row_size;
        for (int64_t j = 0; j < s.columns; ++j, top += width * channels, gradient += channels, places += channels) {
          EachRegister(channels, (s.columns - j) * channels, [&](int64_t c, auto count) {
            const Floats value = LoadSome(gradient + c, count);
            const Floats place = LoadSome(places + c, count);
#pragma GCC unroll 2
            for (int a = 0; a < height; ++a)
#pragma GCC unroll 2
              for (int b = 0; b < width; ++b)
                StoreSome<kWide>(top + a * row_size + b * channels + c,
                                   place == static_cast<float>(a * width + b) ? value : Floats{}, count);
          });
        }
        for (int a = 0; a < height; ++a)
          std::memset(x + (i * height + a) * row_size + used, 0, (row_size - used) * sizeof(float));
      }
      std::memset(x + s.rows * height * row_size, 0, below * sizeof(float));
    }
  });
}

static Shape Described(XLA_FFI_CallFrame* frame, const Array<float>& x, const Array<float>& y) {
  const int64_t height = x.FromLast(3), width = x.FromLast(2), channels = x.FromLast(1);
  const int64_t images = x.Size() / std::max<int64_t>(height * width * channels, 1);  // of all clients
  return {images, height, width, channels, y.FromLast(3), y.FromLast(2),
          Attribute<int64_t>(frame, "height"), Attribute<int64_t>(frame, "width")};
}

// x [..., h, w, c] -> the maxima and their places [..., rows, columns, c]
extern "C" XLA_FFI_Error* max_pool(XLA_FFI_CallFrame* frame) {
  if (AnswersVersion(frame)) return nullptr;
  const auto x = Argument<float>(frame, 0), y = Result<float>(frame, 0);
  Maxima(Described(frame, x, y), x.data, y.data, Result<float>(frame, 1).data);
  return nullptr;
}

// The gradient for the maxima, their places [..., rows, columns, c] -> that for x [..., h, w, c]
extern "C" XLA_FFI_Error* max_pool_gradient(XLA_FFI_CallFrame* frame) {
  if (AnswersVersion(frame)) return nullptr;
  const auto y = Argument<float>(frame, 0), x = Result<float>(frame, 0);
  Spread(Described(frame, x, y), y.data, Argument<float>(frame, 1).data, x.data);
  return nullptr;
}
