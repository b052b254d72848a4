// What a fork leaves to the parent. A child has copies of our objects, but neither the threads that work for
// them nor connections that it may speak on; mapped memory is all that it can go on using.
#pragma once

#include <unistd.h>

#include <memory>

#include "python/src/errors.h"

namespace tensorcast::python {

// The process that something was made in. Immutable.
class ProcessMark {
 public:
  ProcessMark() : pid_(getpid()) {}
  bool Forked() const { return getpid() != pid_; }
  // With the GIL. Raises in a child.
  void Check() const {
    if (Forked()) RaiseForked();
  }

 private:
  const pid_t pid_;
};

// Owns the object in this process. In one that is forked from it the object is never destroyed: what that
// would tell the daemon is the parent's to say.
template <class T>
std::shared_ptr<T> LeftAloneAfterFork(std::unique_ptr<T> object) {
  return std::shared_ptr<T>(object.release(), [mark = ProcessMark()](T* owned) {
    if (!mark.Forked()) delete owned;
  });
}

}  // namespace tensorcast::python
