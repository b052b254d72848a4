// Keys over real sockets: listed, deleted, watched, repeated.
#include <thread>

#include <gmock/gmock.h>

#include "global_store/app/global_store_fixture.h"

namespace tensorcast::global_store::keys_test {
namespace {

using ::testing::SizeIs;

TEST_F(GlobalStoreServerTest, RepeatedRequestId_GetsSameAnswerAfterRestart) {
  Register("a");
  const auto manifest = SomeManifest("1");
  const RequestContext publish = Context();
  EXPECT_FALSE(Publish(*manifest, "a", "r", "k", publish)->existed());
  EXPECT_FALSE(Publish(*manifest, "a", "r", "k", publish)->existed());
  const RequestContext bind = Context();
  EXPECT_EQ(Bind("k", manifest->id(), bind)->key().revision(), 2u);
  EXPECT_EQ(Bind("k", manifest->id(), bind)->key().revision(), 2u);
  Restart();
  EXPECT_EQ(Bind("k", manifest->id(), bind)->key().revision(), 2u);
  EXPECT_EQ(Bind("k", manifest->id())->key().revision(), 3u);
  EXPECT_EQ(Bind("other", manifest->id(), bind)->key().revision(), 1u) << "the same id, but another request";
}

TEST_F(GlobalStoreServerTest, FilesOfAKey_AreInheritedAndKeptAfterRestart) {
  Register("a");
  const auto files = SomeFiles();
  const auto bound = PublishWithFiles(*SomeManifest("1"), *files, "a", "k");
  ASSERT_TRUE(bound.ok()) << bound.status();
  EXPECT_EQ(bound->files_id(), files->id());
  EXPECT_EQ(Publish(*SomeManifest("2"), "a", "", "k")->files_id(), files->id());
  Restart();
  Register("a");
  EXPECT_EQ(Resolve("k")->files_id(), files->id());
  const auto described = Describe(files->id());
  ASSERT_TRUE(described.ok()) << described.status();
  EXPECT_EQ(described->first.kind(), 1u);
  EXPECT_EQ(described->first.keys_size(), 1);
  EXPECT_EQ(Publish(*SomeManifest("3"), "a", "", "k")->files_id(), files->id());
  EXPECT_EQ(Publish(*SomeManifest("4", /*tensors=*/2), "a", "", "k")->files_id(), "");
  EXPECT_TRUE(absl::IsInvalidArgument(Bind("other", files->id()).status()));
}

TEST_F(GlobalStoreServerTest, Keys_AreListedInPagesAndDeletedByRevision) {
  Register("a");
  const auto manifest = SomeManifest("1");
  ASSERT_TRUE(Publish(*manifest, "a").ok());
  for (const char* key : {"m/1", "m/2", "m/3", "n"}) ASSERT_TRUE(Bind(key, manifest->id()).ok());
  v1::ListKeysRequest list;
  list.set_prefix("m/");
  list.set_page_size(2);
  auto page = Call(&Stub::ListKeys, list);
  ASSERT_TRUE(page.ok()) << page.status();
  ASSERT_THAT(page->keys(), SizeIs(2));
  list.set_page_token(page->next_page_token());
  page = Call(&Stub::ListKeys, list);
  ASSERT_THAT(page->keys(), SizeIs(1));
  EXPECT_EQ(page->keys(0).name(), "m/3");
  EXPECT_EQ(page->next_page_token(), "");
  list.set_page_size(-1);
  EXPECT_TRUE(absl::IsInvalidArgument(Call(&Stub::ListKeys, list).status()));

  v1::DeleteKeyRequest remove;
  remove.set_key("n");
  remove.set_expected_revision(2);
  EXPECT_TRUE(absl::IsFailedPrecondition(Call(&Stub::DeleteKey, remove).status()));
  remove.set_expected_revision(1);
  EXPECT_TRUE(Call(&Stub::DeleteKey, remove).ok());
  EXPECT_TRUE(absl::IsNotFound(Resolve("n").status()));
}

TEST_F(GlobalStoreServerTest, WatchKeys_SendsListThenChangesThenEnd) {
  Register("a");
  const auto manifest = SomeManifest("1");
  ASSERT_TRUE(Publish(*manifest, "a", "", "m/1").ok());
  v1::WatchKeysRequest request;
  request.set_prefix("m/");
  const RequestContext context = Context();
  rpc::ClientCall call(context);
  auto stream = stub_->WatchKeys(call.get(), request);
  v1::WatchKeysResponse event;
  ASSERT_TRUE(stream->Read(&event));
  EXPECT_EQ(event.key().name(), "m/1");
  ASSERT_TRUE(stream->Read(&event));
  EXPECT_TRUE(event.listed());
  EXPECT_FALSE(event.has_key());
  ASSERT_TRUE(Bind("m/2", manifest->id()).ok());
  ASSERT_TRUE(stream->Read(&event));
  EXPECT_EQ(event.key().name(), "m/2");
  v1::DeleteKeyRequest remove;
  remove.set_key("m/1");
  ASSERT_TRUE(Call(&Stub::DeleteKey, remove).ok());
  ASSERT_TRUE(stream->Read(&event));
  EXPECT_EQ(event.key().name(), "m/1");
  EXPECT_TRUE(event.deleted());
  server_->Shutdown(absl::Seconds(5));
  EXPECT_FALSE(stream->Read(&event));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(GlobalStoreServerTest, SlowWatcher_SkipsRevisionsButGetsTheLatest) {
  Register("a");
  const auto manifest = SomeManifest("1");
  ASSERT_TRUE(Publish(*manifest, "a", "", "k").ok());
  v1::WatchKeysRequest request;
  request.set_key("k");
  const RequestContext context = Context();
  rpc::ClientCall call(context);
  auto stream = stub_->WatchKeys(call.get(), request);
  v1::WatchKeysResponse event;
  ASSERT_TRUE(stream->Read(&event));
  uint64_t latest = 0;
  for (int i = 0; i < 300; ++i) latest = Bind("k", manifest->id())->key().revision();
  uint64_t last = event.key().revision();
  while (last < latest && stream->Read(&event)) {
    if (event.listed()) continue;
    EXPECT_GT(event.key().revision(), last);
    last = event.key().revision();
  }
  EXPECT_EQ(last, latest);
  call.get()->TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(GlobalStoreServerTest, ComingAndGoingWatchers_DoNotStopBinds) {
  Register("a");
  const auto manifest = SomeManifest("1");
  ASSERT_TRUE(Publish(*manifest, "a", "", "k").ok());
  std::vector<std::thread> watchers;
  for (int i = 0; i < 4; ++i) {
    watchers.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        const RequestContext context = Context();
        rpc::ClientCall call(context);
        auto stream = stub_->WatchKeys(call.get(), v1::WatchKeysRequest());
        v1::WatchKeysResponse event;
        EXPECT_TRUE(stream->Read(&event));
        call.get()->TryCancel();
        EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
      }
    });
  }
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Bind("k", manifest->id()).ok());
  for (std::thread& watcher : watchers) watcher.join();
}

}  // namespace
}  // namespace tensorcast::global_store::keys_test
