#include "python/src/without_gil.h"

#include <unistd.h>

#include <optional>
#include <thread>

#include "absl/base/no_destructor.h"
#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tensorcast::python {
namespace {

struct Door {
  absl::Mutex mutex;
  int coming_back ABSL_GUARDED_BY(mutex) = 0;
  std::optional<std::thread::id> exiting ABSL_GUARDED_BY(mutex);  // set: closed to all others
  bool NobodyComes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return coming_back == 0; }
};

Door& TheDoor() {
  static absl::NoDestructor<Door> door;
  return *door;
}

bool MayComeBack() {
  Door& door = TheDoor();
  absl::MutexLock lock(&door.mutex);
  if (door.exiting.has_value() && *door.exiting != std::this_thread::get_id()) return false;
  ++door.coming_back;
  return true;
}

void IsBack() {
  Door& door = TheDoor();
  absl::MutexLock lock(&door.mutex);
  --door.coming_back;
}

}  // namespace

WithoutGil::~WithoutGil() {
  while (!MayComeBack()) pause();
  PyEval_RestoreThread(thread_);
  IsBack();
}

void LetNoneComeBack() {
  Door& door = TheDoor();
  {
    absl::MutexLock lock(&door.mutex);
    door.exiting = std::this_thread::get_id();
  }
  PyThreadState* const thread = PyEval_SaveThread();
  {
    absl::MutexLock lock(&door.mutex);
    door.mutex.Await(absl::Condition(&door, &Door::NobodyComes));
  }
  PyEval_RestoreThread(thread);
}

}  // namespace tensorcast::python
