// Decides how the program ends: the effect of Ctrl-C and SIGTERM on a command, and the exit code for an
// error.
//
// HandleSignals starts a thread that waits for the signals. The first signal cancels OnTerminationSignal(),
// and the command then ends its work. The second signal ends the process at once.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "base/request_context.h"

namespace tensorcast::cli {

// Call this before any other thread starts.
void HandleSignals();
Cancellation OnTerminationSignal();
// A context that OnTerminationSignal() cancels.
RequestContext InterruptibleContext(absl::Duration timeout = absl::InfiniteDuration());
// Registers a file, such as a server's socket, that is removed when a second signal ends the process.
void RemoveWhenTerminatedAgain(const std::string& path);
// Registers a clean-up. On the second signal `clean_up` runs on the signal thread, while other threads still
// run. The process ends when `clean_up` returns.
void CallWhenTerminatedAgain(std::function<void()> clean_up);

// Sets whether Fail also prints the error on stdout: {"error": {"code", "message", "details"}}, where the
// details are the types of the error's payloads. Call this before another thread can fail.
void PrintErrorsAsJson(bool as_json);
// Prints the error on stderr and returns its exit code: 130 if the user interrupted the command, else 1.
int Fail(const absl::Status& status);
int ExitCode(const absl::Status& status);  // 0 when OK, else Fail
inline int ExitCode(int code) { return code; }
// ExitCode for a command that runs until it is interrupted: an interruption prints no error and gives 130.
int EndlessExitCode(const absl::Status& status);

}  // namespace tensorcast::cli
