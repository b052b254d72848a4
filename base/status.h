// Helpers around absl::Status, the one error type of this code base. Nothing here throws.
#pragma once

#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace tensorcast {

// The status for a failed system call: "<operation> <subject>: <strerror>", with the code that lets a caller
// act (ENOENT -> NOT_FOUND, ENOSPC/ENOMEM/EMFILE -> RESOURCE_EXHAUSTED, EACCES -> PERMISSION_DENIED, ...).
// `error_number` is errno, read at once after the call.
absl::Status ErrnoStatus(int error_number, std::string_view operation, std::string_view subject);

// The status with "<context>: " before its message; OK stays OK.
absl::Status Annotate(const absl::Status& status, std::string_view context);

}  // namespace tensorcast

#define TC_RETURN_IF_ERROR(expr)                              \
  do {                                                        \
    if (::absl::Status tc_status = (expr); !tc_status.ok()) { \
      return tc_status;                                       \
    }                                                         \
  } while (false)

#define TC_STATUS_CONCAT_INNER(a, b) a##b
#define TC_STATUS_CONCAT(a, b) TC_STATUS_CONCAT_INNER(a, b)

// TC_ASSIGN_OR_RETURN(auto value, Compute()): declares or assigns `value`, or returns the error.
#define TC_ASSIGN_OR_RETURN(lhs, expr) \
  TC_ASSIGN_OR_RETURN_IMPL(TC_STATUS_CONCAT(tc_status_or_, __LINE__), lhs, expr)
#define TC_ASSIGN_OR_RETURN_IMPL(result, lhs, expr) \
  auto result = (expr);                             \
  if (!result.ok()) {                               \
    return std::move(result).status();              \
  }                                                 \
  lhs = *std::move(result)
