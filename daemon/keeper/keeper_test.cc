#include "daemon/keeper/keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/testing/temp_folder.h"
#include "core/memory/host_pool.h"
#include "daemon/keeper/attachments.h"
#include "daemon/keeper/kept_record.h"
#include "daemon/keeper/unserved_segments.h"

namespace tensorcast::daemon {
namespace {

using ::testing::IsEmpty;

// A keeper on a thread, which ends soon after its last daemon has gone.
class Keeper : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    thread_ = std::thread(
        [this, ready = ends[1]] { EXPECT_TRUE(RunKeeper(Path(), absl::Milliseconds(200), ready).ok()); });
    char none;
    EXPECT_EQ(read(ends[0], &none, 1), 0);
    close(ends[0]);
  }
  void TearDown() override { thread_.join(); }

  std::string Path() const { return folder_.path() + "/keeper.sock"; }
  KeeperClient NewDaemon() const { return KeeperClient(Path(), {"never started"}); }
  // A file of so many bytes.
  static UniqueFd File(off_t bytes) {
    UniqueFd fd(memfd_create("kept", MFD_CLOEXEC));
    EXPECT_EQ(ftruncate(fd.get(), bytes), 0);
    return fd;
  }
  static std::vector<std::string> Contents(const std::vector<KeptDescriptor>& kept) {
    std::vector<std::string> contents;
    for (const KeptDescriptor& one : kept) {
      struct stat file{};
      EXPECT_EQ(fstat(one.fd.get(), &file), 0);
      contents.push_back(one.name + " " + std::to_string(file.st_size));
    }
    std::ranges::sort(contents);
    return contents;
  }

  const ::tensorcast::testing::TempFolder folder_;
  std::thread thread_;
};

TEST_F(Keeper, Keeper_ReturnsSegmentsOfPreviousDaemon) {
  {
    KeeperClient before = NewDaemon();
    const auto nothing = before.Open();
    ASSERT_TRUE(nothing.ok()) << nothing.status();
    EXPECT_THAT(*nothing, IsEmpty());
    before.Put("a", File(1));
    before.Put("b", File(2));
    before.Put("a", File(3));
    before.Put("c", File(4));
    before.Drop("c");
  }
  for (int i = 0; i < 2; ++i) {
    KeeperClient next = NewDaemon();
    const auto kept = next.Open();
    ASSERT_TRUE(kept.ok()) << kept.status();
    EXPECT_EQ(Contents(*kept), (std::vector<std::string>{"a 3", "b 2"}));
  }
}

TEST_F(Keeper, Keeper_ReadsUpdatesOfPreviousDaemonFirst) {
  KeeperClient before = NewDaemon();
  ASSERT_TRUE(before.Open().ok());
  for (int i = 0; i < 50; ++i) before.Put(std::to_string(i), File(i));
  KeeperClient next = NewDaemon();
  const auto kept = next.Open();
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->size(), 50u);
}

TEST_F(Keeper, DropThatDidNotArrive_IsRepeatedByMend) {
  KeeperClient daemon = NewDaemon();
  ASSERT_TRUE(daemon.Open().ok());
  daemon.Put("a", File(1));
  daemon.Put("b", File(2));
  KeeperClient other = NewDaemon();
  ASSERT_TRUE(other.Open().ok());  // the keeper has closed the connection to the first one
  daemon.Drop("a");
  daemon.Mend();
  KeeperClient next = NewDaemon();
  const auto kept = next.Open();
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(Contents(*kept), (std::vector<std::string>{"b 2"}));
}

// A process that is attached until it is told to end.
class Client {
 public:
  Client() : pid_(fork()) {
    if (pid_ == 0) {
      pause();
      _exit(0);
    }
  }
  ~Client() { End(); }
  void End() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, -1), nullptr, 0);
  }
  Attachment AttachTo(std::vector<std::string> segments) const {
    return {.id = "1",
            .pid = pid_,
            .artifact_id = "a",
            .segments = std::move(segments),
            .process = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)))};
  }

 private:
  pid_t pid_;
};

TEST_F(Keeper, Attachment_IsKeptUntilItsProcessEnds) {
  Client client;
  KeeperClient before = NewDaemon();
  ASSERT_TRUE(before.Open().ok());
  NoteAttachment(before, client.AttachTo({"s1", "s2"}));
  for (const std::string artifact_id : {"a", ""}) {
    KeeperClient next = NewDaemon();
    auto kept = next.Open();
    ASSERT_TRUE(kept.ok()) << kept.status();
    std::vector<Attachment> found = TakeAttachments(*kept);
    EXPECT_THAT(*kept, IsEmpty());
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].artifact_id, artifact_id);
    EXPECT_EQ(found[0].pid, client.AttachTo({}).pid);
    EXPECT_EQ(found[0].segments, (std::vector<std::string>{"s1", "s2"}));
    NoteUnserved(next, found[0]);
  }
  client.End();
  KeeperClient next = NewDaemon();
  auto kept = next.Open();
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_THAT(TakeAttachments(*kept), IsEmpty());
}

TEST_F(Keeper, UnservedSegment_TakesPoolRoomUntilItsProcessEnds) {
  Client client;
  KeeperClient daemon = NewDaemon();
  ASSERT_TRUE(daemon.Open().ok());
  daemon.Put(SegmentName("elsewhere"), File(5));
  HostPool::Kept kept;
  kept.segments.push_back({"room", UniqueFd()});
  const auto pool =
      HostPool::Create({.bytes = 6 * kGranuleBytes, .segment_bytes = 2 * kGranuleBytes}, std::move(kept));
  ASSERT_TRUE(pool.ok()) << pool.status();
  std::vector<HostAllocation> room;
  const std::vector<NamedExtent> whole = {{0, "room", 0, 2 * kGranuleBytes}};
  room.push_back(*(*pool)->Adopt(2 * kGranuleBytes, whole));

  UnservedSegments unserved(&daemon);
  unserved.Open(pool->get(), {{"elsewhere", 5}}, std::move(room));
  unserved.Add(client.AttachTo({"elsewhere"}));
  unserved.DropEnded();
  EXPECT_EQ(unserved.stats().bytes, 5u);
  EXPECT_EQ((*pool)->stats().used_bytes, 2 * kGranuleBytes);
  client.End();
  unserved.DropEnded();
  EXPECT_EQ(unserved.stats().bytes, 0u);
  EXPECT_EQ(unserved.stats().holders, 0u);
  EXPECT_EQ((*pool)->stats().used_bytes, 0u);
  KeeperClient next = NewDaemon();
  EXPECT_THAT(*next.Open(), IsEmpty());
}

KeptRecord SomeRecord() {
  return {.manifest = "bytes of a manifest",
          .extents = {{.image_offset = 0, .segment = "s1", .offset = kGranuleBytes, .bytes = kGranuleBytes},
                      {.image_offset = kGranuleBytes, .segment = "s2", .offset = 0, .bytes = kGranuleBytes}}};
}

TEST(KeptRecordTest, KeptRecord_SurvivesRoundTrip) {
  const auto read = DecodeRecord(EncodeRecord(SomeRecord()));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, SomeRecord());
}

TEST(KeptRecordTest, KeptRecord_EncodesToGoldenBytes) {
  const std::string bytes = EncodeRecord({.manifest = "M", .extents = {{0, "s", 1, 2}}});
  EXPECT_EQ(bytes.substr(0, bytes.size() - 16), std::string("TCKR\1\0\1\0\0\0"
                                                            "\0\0\0\0\0\0\0\0"
                                                            "\1\0s"
                                                            "\1\0\0\0\0\0\0\0"
                                                            "\2\0\0\0\0\0\0\0"
                                                            "\1\0\0\0M",
                                                            42));
}

TEST(KeptRecordTest, DamagedKeptRecord_IsRefused) {
  const std::string good = EncodeRecord(SomeRecord());
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] ^= 1;
    EXPECT_TRUE(absl::IsInvalidArgument(DecodeRecord(bad).status())) << i;
    EXPECT_TRUE(absl::IsInvalidArgument(DecodeRecord(good.substr(0, i)).status())) << i;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeRecord(good + "x").status()));
}

}  // namespace
}  // namespace tensorcast::daemon
