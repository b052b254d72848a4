// WithoutGil releases the GIL during a wait, so that the interpreter can exit safely meanwhile.
//
// A Python before 3.14 that is being finalized ends every thread that asks for the GIL, by unwinding the
// thread's stack (pthread_exit). If that stack has C++ frames, the unwinding ends the whole process.
// Therefore no thread may ask for the GIL once finalization has begun.
#pragma once

#include <nanobind/nanobind.h>

namespace tensorcast::python {

// Releases the GIL for its scope. If the interpreter exits meanwhile, the destructor never returns, except in
// the thread that runs the exit.
class WithoutGil {
 public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const thread_;
};

// Called with the GIL, in the thread that runs the exit. Waits for the threads that are already taking the
// GIL back in ~WithoutGil. After BlockGilReturns, no other thread takes the GIL back there.
void BlockGilReturns();

}  // namespace tensorcast::python
