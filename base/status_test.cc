#include "base/status.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>

#include "absl/strings/cord.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::status_test {
namespace {

using ::testing::HasSubstr;

TEST(ErrnoStatus, ErrnoStatus_NamesOperationSubjectAndReason) {
  const std::string path = ::testing::TempDir() + "/no-such-folder/file";
  ASSERT_EQ(open(path.c_str(), O_RDONLY), -1);
  const absl::Status status = ErrnoStatus(errno, "open", path);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "open " + path + ": No such file or directory");
}

TEST(ErrnoStatus, ErrnoStatus_MapsErrnoToStatusCode) {
  const struct {
    int error_number;
    absl::StatusCode code;
  } cases[] = {
      {ENOENT, absl::StatusCode::kNotFound},          {EEXIST, absl::StatusCode::kAlreadyExists},
      {EACCES, absl::StatusCode::kPermissionDenied},  {EPERM, absl::StatusCode::kPermissionDenied},
      {ENOSPC, absl::StatusCode::kResourceExhausted}, {EDQUOT, absl::StatusCode::kResourceExhausted},
      {ENOMEM, absl::StatusCode::kResourceExhausted}, {EMFILE, absl::StatusCode::kResourceExhausted},
      {ENFILE, absl::StatusCode::kResourceExhausted}, {EAGAIN, absl::StatusCode::kUnavailable},
      {ECONNREFUSED, absl::StatusCode::kUnavailable}, {ECONNRESET, absl::StatusCode::kUnavailable},
      {EPIPE, absl::StatusCode::kUnavailable},        {ETIMEDOUT, absl::StatusCode::kDeadlineExceeded},
      {EINVAL, absl::StatusCode::kInvalidArgument},   {EIO, absl::StatusCode::kDataLoss},
      {EBADF, absl::StatusCode::kInternal},
  };
  for (const auto& test_case : cases) {
    EXPECT_EQ(ErrnoStatus(test_case.error_number, "write", "x").code(), test_case.code)
        << "errno " << test_case.error_number;
  }
}

TEST(ErrnoStatus, ErrnoStatusOfZeroOrUnknownErrno_IsAnError) {
  EXPECT_EQ(ErrnoStatus(0, "read", "x").code(), absl::StatusCode::kUnknown);
  EXPECT_FALSE(ErrnoStatus(99999, "read", "x").ok());
}

TEST(Annotate, Annotate_PrependsContextAndKeepsCodeAndPayloads) {
  absl::Status status = absl::DataLossError("chunk 3 is wrong");
  status.SetPayload("tc/source", absl::Cord("node-a"));
  const absl::Status annotated = Annotate(status, "pull");
  EXPECT_EQ(annotated.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(annotated.message(), "pull: chunk 3 is wrong");
  ASSERT_TRUE(annotated.GetPayload("tc/source").has_value());
  EXPECT_EQ(*annotated.GetPayload("tc/source"), "node-a");
}

TEST(Annotate, AnnotateOfOk_StaysOk) { EXPECT_TRUE(Annotate(absl::OkStatus(), "pull").ok()); }

absl::StatusOr<std::unique_ptr<int>> MakeInt(bool fail) {
  if (fail) return absl::AbortedError("no int");
  return std::make_unique<int>(7);
}

absl::Status AssignTwice(bool fail_second, int& out) {
  TC_ASSIGN_OR_RETURN(auto first, MakeInt(false));
  TC_ASSIGN_OR_RETURN(const std::unique_ptr<int> second, MakeInt(fail_second));
  TC_RETURN_IF_ERROR(absl::OkStatus());
  out = *first + *second;
  return absl::OkStatus();
}

TEST(StatusMacros, AssignOrReturn_MovesValueOrReturnsErrorFirst) {
  int out = 0;
  EXPECT_EQ(AssignTwice(true, out).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(out, 0);
  EXPECT_TRUE(AssignTwice(false, out).ok());
  EXPECT_EQ(out, 14);
}

}  // namespace
}  // namespace tensorcast::status_test
