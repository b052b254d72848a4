// Runs a command line in the test's own process.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/commands/command_line.h"

namespace tensorcast::cli {

struct RunResult {
  int code = -1;
  std::string out;
  std::string err;
};

inline RunResult RunForTest(const std::vector<Command>& commands, const std::vector<std::string>& words) {
  std::vector<const char*> argv = {"tensorcast"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  RunResult result;
  result.code = ParseAndRun(commands, static_cast<int>(argv.size()), argv.data());
  result.out = ::testing::internal::GetCapturedStdout();
  result.err = ::testing::internal::GetCapturedStderr();
  return result;
}

}  // namespace tensorcast::cli
