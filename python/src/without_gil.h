// Waiting without the GIL, such that an interpreter that exits meanwhile ends well.
//
// A thread that comes back for the GIL of an interpreter that is being finalized is ended there and then, by
// unwinding its stack (until Python 3.13), which ends the process where that stack is C++. So before
// finalization begins no thread may be on its way back, and none may come after.
#pragma once

#include <nanobind/nanobind.h>

namespace tensorcast::python {

// Gives the GIL up for its scope. Where the interpreter exits meanwhile the scope never ends, but in the
// thread that does it.
class WithoutGil {
 public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const thread_;
};

// With the GIL, in the thread that exits: from now on no other comes back. Waits until those that are on
// their way have.
void BlockGilReturns();

}  // namespace tensorcast::python
