// The stream and event types of the stand-in for the CUDA runtime, under the names in CUDA's header.
#pragma once

#include <driver_types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "tests/stand_ins/cuda/happens_before.h"

// Runs operations in order on a thread of its own. Thread-safe.
struct CUstream_st {
  explicit CUstream_st(int gpu, uint64_t id) : gpu(gpu), id(id), worker([this] { Run(); }) {}
  ~CUstream_st() {
    {
      absl::MutexLock lock(&mutex);
      stop = true;
    }
    worker.join();
  }

  uint64_t Enqueue(std::function<cudaError_t()> operation) {
    absl::MutexLock lock(&mutex);
    queue.push_back(std::move(operation));
    return ++enqueued;
  }
  // Waits until all operations up to `number` are done. Returns, and clears, the first error since the last
  // call.
  cudaError_t Await(uint64_t number) {
    AwaitOnly(number);
    absl::MutexLock lock(&mutex);
    return std::exchange(error, cudaSuccess);
  }
  // For an event: the first error of all operations up to `number`, at every call. Await still returns it
  // too.
  cudaError_t AwaitEvent(uint64_t number) {
    AwaitOnly(number);
    absl::MutexLock lock(&mutex);
    return failed <= number ? failure : cudaSuccess;
  }
  // Keeps the error for the next call that synchronises with this stream.
  void AwaitOnly(uint64_t number) {
    absl::MutexLock lock(&mutex);
    const auto done_so_far = [this, number]() ABSL_SHARED_LOCKS_REQUIRED(mutex) { return done >= number; };
    mutex.Await(absl::Condition(&done_so_far));
  }
  bool IsDone(uint64_t number) {
    absl::MutexLock lock(&mutex);
    return done >= number;
  }
  uint64_t last() {
    absl::MutexLock lock(&mutex);
    return enqueued;
  }

  void Run() {
    while (true) {
      std::function<cudaError_t()> operation;
      {
        absl::MutexLock lock(&mutex);
        const auto work = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex) { return stop || !queue.empty(); };
        mutex.Await(absl::Condition(&work));
        if (queue.empty()) return;
        operation = std::move(queue.front());
        queue.pop_front();
      }
      const cudaError_t result = operation();
      operation = nullptr;  // releases the memory before any thread hears that the operation is done
      absl::MutexLock lock(&mutex);
      if (error == cudaSuccess) error = result;
      ++done;
      if (result != cudaSuccess && failure == cudaSuccess) {
        failure = result;
        failed = done;
      }
    }
  }

  const int gpu;
  const uint64_t id;
  absl::Mutex mutex;
  std::deque<std::function<cudaError_t()>> queue ABSL_GUARDED_BY(mutex);
  uint64_t enqueued ABSL_GUARDED_BY(mutex) = 0;
  uint64_t done ABSL_GUARDED_BY(mutex) = 0;
  cudaError_t error ABSL_GUARDED_BY(mutex) = cudaSuccess;    // since the last Await
  cudaError_t failure ABSL_GUARDED_BY(mutex) = cudaSuccess;  // the first of all; `failed` has its number
  uint64_t failed ABSL_GUARDED_BY(mutex) = 0;
  bool stop ABSL_GUARDED_BY(mutex) = false;
  std::thread worker;
};

// An event covers the operations that were on a stream when it was recorded.
struct CUevent_st {
  int gpu = 0;
  std::shared_ptr<CUstream_st> stream;  // null: never recorded
  uint64_t number = 0;
  tensorcast::stand_ins::HappensBefore::Clock clock;
};
