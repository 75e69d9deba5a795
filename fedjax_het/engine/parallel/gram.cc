// Inner products of few long rows on a CPU: K_ij = sum_k x_ik x_jk, x [..., rows, columns].
//
// float32 is multiplied and added in double precision, bfloat16 in single precision over a block of columns and in
// double precision over blocks. A block is converted once, into a cache; a tile of pairs of rows stays in registers
// while it runs along the columns; of each pair (i, j) only i <= j is computed. Each thread has a fixed part of the
// columns, so that no result depends on which thread was free.

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#include "call_frame.h"

#ifdef __AVX512F__
constexpr int kRegister = 64, kTile = 5;  // bytes, rows of a tile: 25 of 32 registers hold sums
#else
constexpr int kRegister = 32, kTile = 3;  // 9 of 16
#endif
constexpr int64_t kPanel = 40 / kTile * kTile;  // rows against as many rows: both blocks stay in the second cache

typedef uint16_t Bfloat16;  // its bits

template <typename Real>
struct Block {
  static constexpr int64_t kLanes = kRegister / sizeof(Real);
  static constexpr int64_t kColumns = 8192 / sizeof(Real);
  static constexpr int64_t kStride = kColumns + kLanes;  // a power of two would put all rows in the same cache sets
  typedef Real Vector __attribute__((vector_size(kRegister)));
};
typedef Block<double>::Vector Doubles;
typedef Block<float>::Vector Floats;

static inline Doubles Wide(const float* x) {
  typedef float Some __attribute__((vector_size(kRegister / 2), aligned(4)));
  return __builtin_convertvector(*reinterpret_cast<const Some*>(x), Doubles);
}

static inline Floats Wide(const Bfloat16* x) {
  typedef Bfloat16 Some __attribute__((vector_size(kRegister / 2), aligned(2)));
  typedef uint32_t Bits __attribute__((vector_size(kRegister)));
  return reinterpret_cast<Floats>(__builtin_convertvector(*reinterpret_cast<const Some*>(x), Bits) << 16);
}

// `count` entries of a row, filled up with zeros to whole registers; those that will be next are fetched.
template <typename In, typename Real>
static void Load(const In* from, int64_t count, Real* to) {
  constexpr int64_t kLanes = Block<Real>::kLanes;
  typedef typename Block<Real>::Vector Vector;
  int64_t k = 0;
  for (; k + kLanes <= count; k += kLanes) {
    __builtin_prefetch(from + k + Block<Real>::kColumns);
    *reinterpret_cast<Vector*>(to + k) = Wide(from + k);
  }
  if (k == count) return;
  In rest[kLanes] = {};
  std::copy(from + k, from + count, rest);
  *reinterpret_cast<Vector*>(to + k) = Wide(rest);
}

// sums[i, j] += <a_i, b_j> for a tile of rows a_i and b_j.
template <typename Real>
static void Tile(const Real* a, const Real* b, int64_t count, double* sums, int64_t sums_stride) {
  typedef typename Block<Real>::Vector Vector;
  constexpr int64_t kLanes = Block<Real>::kLanes, kStride = Block<Real>::kStride;
  Vector partial[kTile][kTile] = {};
  // volatile: an operand is read into a register once, where GCC would read it again for every product
  for (int64_t k = 0; k < count; k += kLanes) {
    Vector right[kTile];
#pragma GCC unroll 8
    for (int j = 0; j < kTile; ++j) right[j] = *reinterpret_cast<const volatile Vector*>(b + j * kStride + k);
#pragma GCC unroll 8
    for (int i = 0; i < kTile; ++i) {
      const Vector left = *reinterpret_cast<const volatile Vector*>(a + i * kStride + k);
#pragma GCC unroll 8
      for (int j = 0; j < kTile; ++j) partial[i][j] += left * right[j];
    }
  }
  for (int i = 0; i < kTile; ++i)
    for (int j = 0; j < kTile; ++j) {
      double sum = 0;
      for (int lane = 0; lane < kLanes; ++lane) sum += partial[i][j][lane];
      sums[i * sums_stride + j] += sum;
    }
}

// Adds what columns [first, last) contribute to sums [padded, padded], where i <= j; padded: rows to whole tiles.
template <typename In, typename Real>
static void AddProducts(const In* x, int64_t rows, int64_t width, int64_t first, int64_t last, double* sums,
                        int64_t padded) {
  constexpr int64_t kColumns = Block<Real>::kColumns, kStride = Block<Real>::kStride, kLanes = Block<Real>::kLanes;
  auto* block = static_cast<Real*>(std::aligned_alloc(kRegister, padded * kStride * sizeof(Real)));
  std::fill(block + rows * kStride, block + padded * kStride, Real(0));
  for (; first < last; first += kColumns) {
    const int64_t count = std::min(kColumns, last - first), whole = (count + kLanes - 1) / kLanes * kLanes;
    for (int64_t i = 0; i < rows; ++i) Load(x + i * width + first, count, block + i * kStride);
    for (int64_t above = 0; above < padded; above += kPanel)
      for (int64_t beside = above; beside < padded; beside += kPanel)
        for (int64_t i = above; i < std::min(above + kPanel, padded); i += kTile)
          for (int64_t j = std::max(beside, i); j < std::min(beside + kPanel, padded); j += kTile)
            Tile(block + i * kStride, block + j * kStride, whole, sums + i * padded + j, padded);
  }
  std::free(block);
}

// XLA's threads, if it gives any to this call.
class Pool {
 public:
  explicit Pool(XLA_FFI_CallFrame* frame) : api_(frame->api), context_(frame->ctx) {}

  int64_t CountThreads() const {
    int64_t count = 1;
    XLA_FFI_ThreadPool_NumThreads_Args args{XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE, nullptr, context_, &count};
    return IsDone(api_->XLA_FFI_ThreadPool_NumThreads(&args)) ? count : 1;
  }

  template <typename Task>
  void Schedule(Task task) const {
    auto* own = new Task(task);
    const auto run = [](void* data) {
      const std::unique_ptr<Task> task(static_cast<Task*>(data));
      (*task)();
    };
    XLA_FFI_ThreadPool_Schedule_Args args{XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE, nullptr, context_, run, own};
    if (!IsDone(api_->XLA_FFI_ThreadPool_Schedule(&args))) delete own;
  }

 private:
  bool IsDone(XLA_FFI_Error* error) const {
    if (!error) return true;
    XLA_FFI_Error_Destroy_Args args{XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
    api_->XLA_FFI_Error_Destroy(&args);
    return false;
  }

  const XLA_FFI_Api* api_;
  XLA_FFI_ExecutionContext* context_;
};

// work(part, first, last) for each part of the columns, by this thread and those of the pool that are free. Whoever
// comes takes the next part, so that this thread never waits for one that has not begun: it may be of the pool itself.
template <typename Work>
static void Share(const Pool& pool, int64_t parts, int64_t width, int64_t block, const Work& work) {
  struct Progress {
    std::mutex mutex;
    std::condition_variable is_done;
    int64_t begun = 0, done = 0;
  };
  auto progress = std::make_shared<Progress>();
  auto take = [=, &work] {
    const int64_t blocks = (width + block - 1) / block;
    std::unique_lock<std::mutex> lock(progress->mutex);
    while (progress->begun < parts) {
      const int64_t part = progress->begun++;
      lock.unlock();
      work(part, blocks * part / parts * block, std::min(blocks * (part + 1) / parts * block, width));
      lock.lock();
      if (++progress->done == parts) progress->is_done.notify_one();
    }
  };
  for (int64_t helper = 1; helper < parts; ++helper) pool.Schedule(take);
  take();
  std::unique_lock<std::mutex> lock(progress->mutex);
  progress->is_done.wait(lock, [&] { return progress->done == parts; });
}

template <typename In, typename Real>
static void Gram(const Pool& pool, const In* x, int64_t rows, int64_t width, double* gram) {
  constexpr int64_t kColumns = Block<Real>::kColumns;
  const int64_t padded = (rows + kTile - 1) / kTile * kTile;
  const int64_t wanted = width / std::max(kColumns, 4 * rows);  // so that the sums stay smaller than half of x
  const int64_t parts = std::max<int64_t>(1, std::min(pool.CountThreads(), wanted));
  std::vector<double> sums(parts * padded * padded);
  Share(pool, parts, width, kColumns, [&](int64_t part, int64_t first, int64_t last) {
    AddProducts<In, Real>(x, rows, width, first, last, sums.data() + part * padded * padded, padded);
  });
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = i; j < rows; ++j) {
      double sum = 0;
      for (int64_t part = 0; part < parts; ++part) sum += sums[(part * padded + i) * padded + j];
      gram[i * rows + j] = gram[j * rows + i] = sum;
    }
}

// x [..., rows, columns] -> [..., rows, rows]
template <typename In, typename Real>
static XLA_FFI_Error* GramOfEach(XLA_FFI_CallFrame* frame) {
  if (AnswersVersion(frame)) return nullptr;
  const auto x = Argument<In>(frame, 0);
  const auto gram = Result<double>(frame, 0);
  const int64_t rows = x.FromLast(2), width = x.FromLast(1);
  for (int64_t i = 0; i * rows * rows < gram.Size(); ++i)
    Gram<In, Real>(Pool(frame), x.data + i * rows * width, rows, width, gram.data + i * rows * rows);
  return nullptr;
}

extern "C" XLA_FFI_Error* gram_float32(XLA_FFI_CallFrame* frame) { return GramOfEach<float, double>(frame); }
extern "C" XLA_FFI_Error* gram_bfloat16(XLA_FFI_CallFrame* frame) { return GramOfEach<Bfloat16, float>(frame); }
