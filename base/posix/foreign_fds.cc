#include "base/posix/foreign_fds.h"

#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/aside.h"

namespace tensorcast {
namespace {

// Several, so that one file system that hangs does not keep the descriptors of the others open.
constexpr int kMaxThreads = 8;

// One queue for the process and up to kMaxThreads threads, which exist only while there is something to
// close. A file system that hangs holds the thread that closes its descriptors; the other threads go on with
// the queue.
class Closer {
 public:
  void Close(std::vector<UniqueFd> fds) {
    absl::MutexLock lock(&mutex_);
    queue_.push_back(std::move(fds));
    // A thread for each call, up to the limit: it ends when the queue is empty. Where no thread is to be had
    // the next call tries again.
    if (threads_ < kMaxThreads && RunDetached([this] { Run(); })) ++threads_;
  }

 private:
  void Run() {
    absl::MutexLock lock(&mutex_);
    while (!queue_.empty()) {
      std::vector<UniqueFd> fds = std::move(queue_.front());
      queue_.pop_front();
      mutex_.Unlock();
      // Without the lock: this is the call that may hang.
      fds.clear();
      mutex_.Lock();
    }
    --threads_;
  }

  absl::Mutex mutex_;
  std::deque<std::vector<UniqueFd>> queue_ ABSL_GUARDED_BY(mutex_);
  int threads_ ABSL_GUARDED_BY(mutex_) = 0;
};

// It is never destroyed, since its threads may outlive main.
Closer& SharedCloser() {
  static Closer* const closer = new Closer();
  return *closer;
}

}  // namespace

ForeignFds::~ForeignFds() {
  if (fds_.empty()) return;
  SharedCloser().Close(std::move(fds_));
}

void ForeignFds::Add(ForeignFds more) {
  for (UniqueFd& fd : more.fds_) fds_.push_back(std::move(fd));
  more.fds_.clear();
}

}  // namespace tensorcast
