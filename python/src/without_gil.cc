#include "python/src/without_gil.h"

#include <unistd.h>

#include <optional>
#include <thread>

#include "absl/base/no_destructor.h"
#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tensorcast::python {
namespace {

// While the interpreter ends, a thread that takes the GIL is ended by Python in the middle of our frames,
// or hangs with our locks. So from then on none comes back but the one that ends it.
struct GilReturns {
  absl::Mutex mutex;
  int coming_back ABSL_GUARDED_BY(mutex) = 0;
  std::optional<std::thread::id> exiting ABSL_GUARDED_BY(mutex);  // set: closed to all others
  bool NoneUnderWay() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return coming_back == 0; }
};

GilReturns& Returns() {
  static absl::NoDestructor<GilReturns> returns;
  return *returns;
}

// A thread counts from before it asks for the GIL until it has the GIL: BlockGilReturns waits for the threads
// that were admitted before it closed the way.
bool MayComeBack() {
  GilReturns& returns = Returns();
  absl::MutexLock lock(&returns.mutex);
  if (returns.exiting.has_value() && *returns.exiting != std::this_thread::get_id()) return false;
  ++returns.coming_back;
  return true;
}

void IsBack() {
  GilReturns& returns = Returns();
  absl::MutexLock lock(&returns.mutex);
  --returns.coming_back;
}

}  // namespace

WithoutGil::~WithoutGil() {
  // For ever: the process is about to end, and this thread has nothing more to do.
  while (!MayComeBack()) pause();
  PyEval_RestoreThread(thread_);
  IsBack();
}

void BlockGilReturns() {
  GilReturns& returns = Returns();
  {
    absl::MutexLock lock(&returns.mutex);
    returns.exiting = std::this_thread::get_id();
  }
  // Those that are on their way back need the GIL to arrive.
  PyThreadState* const thread = PyEval_SaveThread();
  {
    absl::MutexLock lock(&returns.mutex);
    returns.mutex.Await(absl::Condition(&returns, &GilReturns::NoneUnderWay));
  }
  // From here on no thread in WithoutGil takes the GIL back but this one.
  PyEval_RestoreThread(thread);
}

}  // namespace tensorcast::python
