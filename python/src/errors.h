// Raises statuses as the exceptions of tensorcast/errors.py, and guards objects against use after a fork. A
// forked child has no copies of our threads, and must not use our connections. The child can still read
// memory that was mapped before the fork.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <memory>

#include "absl/status/status.h"

namespace tensorcast::python {

// Called with the GIL. REQUIRES: `status` is an error.
[[noreturn]] void Raise(const absl::Status& status);

// Raises the error of a call in a forked child.
[[noreturn]] void RaiseForked();

// Remembers the process in which an object was made. Immutable.
class ProcessMark {
 public:
  ProcessMark() : pid_(getpid()) {}
  bool Forked() const { return getpid() != pid_; }
  // Called with the GIL. Raises in a forked child.
  void Check() const {
    if (Forked()) RaiseForked();
  }

 private:
  const pid_t pid_;
};

// Owns the object in this process. A forked child never destroys its copy, because the destructor would send
// messages to the daemon over the parent's connection.
template <class T>
std::shared_ptr<T> LeftAloneAfterFork(std::unique_ptr<T> object) {
  return std::shared_ptr<T>(object.release(), [mark = ProcessMark()](T* owned) {
    if (!mark.Forked()) delete owned;
  });
}

}  // namespace tensorcast::python
