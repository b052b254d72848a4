#include "cli/output/output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "proto/types.pb.h"

namespace tensorcast::cli {
namespace {

TEST(FormatBytes, FormatBytes_UsesBinaryUnits) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.50 KiB");
  EXPECT_EQ(FormatBytes(uint64_t{1} << 30), "1.00 GiB");
}

TEST(FormatRate, FormatRate_UsesDecimalUnitsAndDashWithoutRate) {
  EXPECT_EQ(FormatRate(2'000'000'000, absl::Seconds(1)), "2.00 GB/s");
  EXPECT_EQ(FormatRate(100'000'000, absl::Seconds(1)), "0.10 GB/s");
  EXPECT_EQ(FormatRate(4'194'304, absl::Seconds(1)), "4.2 MB/s");
  EXPECT_EQ(FormatRate(1'000, absl::Seconds(10)), "0.1 kB/s");
  EXPECT_EQ(FormatRate(1, absl::ZeroDuration()), "-");
  EXPECT_EQ(FormatRate(0, absl::Seconds(1)), "-");
}

TEST(Table, Table_AlignsNumbersRightAndTextLeft) {
  Table table({"name", "bytes"});
  table.Add({"a", "10"});
  table.Add({"long", "7"});
  EXPECT_EQ(table.ToString(),
            "name  bytes\n"
            "a        10\n"
            "long      7\n");
}

// The other end of a terminal, or of what is none, and a clock that a test sets.
class ProgressBarTest : public ::testing::Test {
 protected:
  explicit ProgressBarTest(bool terminal = true) {
    int ends[2];
    if (terminal) {
      EXPECT_EQ(openpty(&ends[0], &ends[1], nullptr, nullptr, nullptr), 0);
    } else {
      EXPECT_EQ(pipe(ends), 0);
    }
    EXPECT_EQ(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    seen_ = ends[0];
    out_ = fdopen(ends[1], "w");
    bar_ = std::make_unique<ProgressBar>("get", out_, [this] { return now_; });
  }
  ~ProgressBarTest() override {
    bar_.reset();
    fclose(out_);
    close(seen_);
  }
  std::string Shown() {
    fflush(out_);
    std::string text(4096, '\0');
    const ssize_t got = read(seen_, text.data(), text.size());
    text.resize(got < 0 ? 0 : got);
    return text;
  }

  SteadyTime now_;
  int seen_ = -1;
  std::FILE* out_ = nullptr;
  std::unique_ptr<ProgressBar> bar_;
};

class ProgressBarInAPipeTest : public ProgressBarTest {
 protected:
  ProgressBarInAPipeTest() : ProgressBarTest(/*terminal=*/false) {}
};

constexpr TransferProgress Half() { return {.bytes_done = 1 << 20, .bytes_total = 2 << 20}; }

TEST_F(ProgressBarTest, ProgressBar_AppearsAfterOneSecondAndIsErasedAtEnd) {
  const auto report = bar_->callback();
  now_ += absl::Milliseconds(999);
  report(Half());
  EXPECT_EQ(Shown(), "");
  now_ += absl::Milliseconds(1);
  report(Half());
  const std::string drawn = Shown();
  EXPECT_NE(drawn.find("get [###############               ]  50 %  1.00 MiB of 2.00 MiB"), std::string::npos)
      << drawn;
  bar_.reset();
  EXPECT_EQ(Shown(), "\r\033[K") << "a line that stays";
  report(Half());
  EXPECT_EQ(Shown(), "") << "after its end";
}

TEST_F(ProgressBarTest, ProgressBarWithoutTotal_ShowsWhatItWaitsFor) {
  now_ += absl::Seconds(2);
  TransferProgress waiting;
  waiting.waiting_for = "space";
  bar_->callback()(waiting);
  EXPECT_NE(Shown().find("  0 %  0 B of 0 B  -  waiting for space"), std::string::npos);
}

TEST_F(ProgressBarTest, SeveralSources_AreNamedLargestShareFirst) {
  now_ += absl::Seconds(2);
  TransferProgress progress = Half();
  progress.sources = {{.source = {.lane = "tcp", .name = "node-0"}, .bytes = 1}};
  bar_->callback()(progress);
  EXPECT_NE(Shown().find("B/s  tcp node-0"), std::string::npos) << "it alone, so without a share";
  for (const uint64_t bytes : {6, 3, 0, 0}) {
    progress.sources.push_back({.source = {.lane = "tcp", .name = absl::StrCat("n", bytes)}, .bytes = bytes});
  }
  bar_->callback()(progress);
  EXPECT_NE(Shown().find("tcp n6 60 %, tcp n3 30 %, tcp node-0 10 % and 2 more"), std::string::npos);
}

TEST_F(ProgressBarInAPipeTest, ProgressBarInPipe_PrintsNothing) {
  now_ += absl::Seconds(2);
  bar_->callback()(Half());
  bar_.reset();
  EXPECT_EQ(Shown(), "");
}

TEST(Json, ToJson_UsesProtoNamesAndOmitsUnsetFields) {
  v1::Key key;
  key.set_artifact_id("tc2:x");
  const auto json = nlohmann::json::parse(ToJson(key));
  EXPECT_EQ(json.dump(), R"({"artifact_id":"tc2:x"})");
  EXPECT_EQ(nlohmann::json::parse(ToJson(key, /*every_field=*/true))["name"], "");
  EXPECT_TRUE(ToJson(key).ends_with("}\n"));
}

// What another process wrote, as a node's address in `status` or an error in `explain`.
TEST(Output, Table_EscapesControlCharacters) {
  Table table({"address", "lanes"});
  table.Add({"host\x1B[2J:1", "tcp\nforged row"});
  EXPECT_EQ(table.ToString(), "address        lanes\nhost\\x1b[2J:1  tcp\\x0aforged row\n");
}

TEST(Output, WarnUnconfirmed_EscapesControlCharacters) {
  ::testing::internal::CaptureStderr();
  WarnUnconfirmed("a\x1b[2Kb", 7);
  const std::string warned = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(warned.find("a\\x1b[2Kb: "), std::string::npos) << warned;
}

TEST(Output, Print_EscapesControlCharactersButLineFeeds) {
  ::testing::internal::CaptureStdout();
  PrintF("given up: %s\n", "node-b \x1B]0;title\x07\r");
  std::fflush(stdout);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "given up: node-b \\x1b]0;title\\x07\\x0d\n");
}

}  // namespace
}  // namespace tensorcast::cli
