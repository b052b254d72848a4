// How the program ends: the effect of Ctrl-C and SIGTERM on a command, and the exit code for an error.
//
// One thread waits for the signals from the start. The first signal cancels OnTerminationSignal(), on which a
// command ends its work; the second one ends the process at once.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "base/request_context.h"

namespace tensorcast::cli {

// Call it before any other thread starts.
void HandleSignals();
Cancellation OnTerminationSignal();
// A context that OnTerminationSignal() cancels.
RequestContext InterruptibleContext(absl::Duration timeout = absl::InfiniteDuration());
// Registers a file to remove when a second signal ends the process, because nothing else would: a server's
// sockets.
void RemoveWhenTerminatedAgain(const std::string& path);
// For more than one file: `clean_up` runs on the thread of the signals, while other threads still work, and
// the process ends when it returns.
void CallWhenTerminatedAgain(std::function<void()> clean_up);

// Whether Fail also prints the error on stdout, from now on: {"error": {"code", "message", "details"}}, where
// the details name the types of the error's payloads. Call it before another thread can fail.
void PrintErrorsAsJson(bool as_json);
// Prints the error on stderr and returns its exit code: 1, or 130 when the user interrupted.
int Fail(const absl::Status& status);
int ExitCode(const absl::Status& status);  // 0 when OK, else Fail
inline int ExitCode(int code) { return code; }
// ExitCode for a command that runs until it is interrupted: the interruption gives 130 without an error.
int EndlessExitCode(const absl::Status& status);

}  // namespace tensorcast::cli
