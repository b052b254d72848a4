// Statuses as Python's exceptions: tensorcast/errors.py has the tree, and chooses among it by the code's
// name. And what a fork leaves to the parent: a child has copies of our objects, but neither the threads that
// work for them nor connections that it may speak on; mapped memory is all that it can go on using.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <memory>

#include "absl/status/status.h"

namespace tensorcast::python {

// With the GIL. `status` is an error.
[[noreturn]] void Raise(const absl::Status& status);

// Of a call in a process that was forked: threads and connections stayed with its parent.
[[noreturn]] void RaiseForked();

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
