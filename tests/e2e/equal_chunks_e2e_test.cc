// A fine-tuned model on a node that has its base: what has not changed is copied on the node, and only the
// rest is pulled.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/e2e/e2e_test_base.h"

namespace tensorcast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kModelBytes = 40 << 20;
constexpr uint64_t kChunkBytes = 1 << 20;  // of images below 512 MiB

class EqualChunks : public E2eTest {
 protected:
  // With one other byte in each of three chunks.
  std::string MakeFineTuned(const std::string& base) {
    std::string path = absl::StrCat(base, ".tuned.safetensors");
    std::filesystem::copy_file(base, path);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    for (const std::streamoff offset : {5 << 20, 17 << 20, 33 << 20}) {
      file.seekg(offset);
      const char byte = static_cast<char>(file.get() ^ 1);
      file.seekp(offset);
      file.put(byte);
    }
    EXPECT_TRUE(file.good());
    return path;
  }
};

TEST_F(EqualChunks, FineTunedModel_PullsOnlyChangedChunks) {
  StartCluster();
  const std::string base = MakeModel("base.safetensors", kModelBytes);
  const std::string tuned = MakeFineTuned(base);
  TC_ASSERT_OK(client(0).Import(Context(), base, {.key = "base"}).status());
  TC_ASSERT_OK(client(0).Import(Context(), tuned, {.key = "tuned"}).status());
  TC_ASSERT_OK_AND_ASSIGN(const auto base_replica, client(1).Get(Context(), "base", {.lane = "tcp"}));

  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(1).Get(Context(), "tuned", {.lane = "tcp"}));
  TC_ASSERT_OK(Compare(*replica, tuned).status());
  const std::optional<TransferReport>& report = replica->transfer();
  ASSERT_TRUE(report.has_value());
  uint64_t equal_bytes = 0;
  uint64_t pulled_bytes = 0;
  for (const SourceReport& source : report->sources) {
    (source.source.lane == kEqualLane ? equal_bytes : pulled_bytes) += source.bytes;
    if (source.source.lane == kEqualLane) {
      EXPECT_EQ(source.source.name, base_replica->artifact_id());
    }
  }
  EXPECT_EQ(pulled_bytes, 3 * kChunkBytes);
  EXPECT_EQ(equal_bytes + pulled_bytes, report->bytes_total);

  const CommandResult explained =
      RunCommand({"explain", "last", "--daemon", cluster_->addresses(1).unix_socket});
  EXPECT_EQ(explained.exit_code, 0);
  EXPECT_THAT(explained.output, AllOf(HasSubstr("equal"), HasSubstr("tcp")));
}

}  // namespace
}  // namespace tensorcast
