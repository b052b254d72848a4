#include "core/testing/object_contract.h"

#include <gmock/gmock.h>

#include <span>
#include <thread>
#include <vector>

#include "base/status.h"
#include "core/artifact/digest.h"
#include "core/source/object_source.h"

namespace tensorcast::testing {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;

std::string Numbered(uint64_t bytes) {
  std::string text(bytes, '\0');
  for (uint64_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i % 251);
  return text;
}

}  // namespace

void ObjectContract::SetUp() {
  place_ = GetParam()();
  ASSERT_NE(place_, nullptr);
}

std::shared_ptr<ObjectReader> ObjectContract::Open(const std::string& name) const {
  const auto found = place_->store().Find(context_, UriOf(name));
  EXPECT_TRUE(found.ok() && found->object != nullptr) << found.status();
  return found.ok() ? found->object : nullptr;
}

absl::StatusOr<std::string> ObjectContract::Read(ObjectReader& object, uint64_t offset,
                                                 uint64_t bytes) const {
  TC_ASSIGN_OR_RETURN(std::string read, ReadBytes(context_, object, offset, bytes));
  TC_RETURN_IF_ERROR(object.CheckUnchanged(context_));
  return read;
}

TEST_P(ObjectContract, Object_IsReadWholeAndInRanges) {
  const std::string bytes = Numbered(100'000);
  place_->Put("a", bytes);
  const auto object = Open("a");
  EXPECT_EQ(object->identity().bytes, bytes.size());
  EXPECT_NE(object->identity().version, "");
  for (const auto& [offset, size] :
       {std::pair(0, 100'000), {0, 0}, {1, 99'999}, {4096, 4096}, {100'000, 0}}) {
    const auto read = Read(*object, offset, size);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(*read == bytes.substr(offset, size)) << offset << " + " << size;
  }
}

TEST_P(ObjectContract, EmptyObject_IsOpened) {
  place_->Put("a", "");
  EXPECT_EQ(Read(*Open("a"), 0, 0).value_or("none"), "");
}

TEST_P(ObjectContract, MissingRange_IsOutOfRange) {
  place_->Put("a", "0123456789");
  const auto object = Open("a");
  for (const auto& [offset, size] : {std::pair<uint64_t, uint64_t>(0, 11), {10, 1}, {~uint64_t{0}, 2}}) {
    const absl::Status status = Read(*object, offset, size).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
    EXPECT_THAT(status.message(), ::testing::HasSubstr(object->identity().uri));
  }
}

TEST_P(ObjectContract, ObjectThatBecameShort_IsNotReadToItsOldEnd) {
  place_->Put("a", Numbered(10'000));
  const auto object = Open("a");
  place_->Put("a", "short");
  EXPECT_THAT(Read(*object, 0, 10'000).status().code(),
              AnyOf(absl::StatusCode::kFailedPrecondition, absl::StatusCode::kDataLoss));
}

TEST_P(ObjectContract, ChangedObject_FailsPrecondition) {
  place_->Put("a", "old bytes");
  const auto object = Open("a");
  place_->Put("a", "new bytes");
  EXPECT_EQ(Read(*object, 0, 9).status().code(), absl::StatusCode::kFailedPrecondition);
  const absl::Status again = place_->store().OpenAgain(context_, object->identity()).status();
  EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition) << again;
  EXPECT_EQ(Read(*Open("a"), 0, 9).value_or(""), "new bytes");
}

TEST_P(ObjectContract, UnchangedObject_OpensAgainWithSameIdentity) {
  place_->Put("a", "bytes");
  const ObjectIdentity identity = Open("a")->identity();
  const auto again = place_->store().OpenAgain(context_, identity);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->identity(), identity);
  EXPECT_EQ(Read(**again, 0, 5).value_or(""), "bytes");
}

TEST_P(ObjectContract, RemovedObject_IsNotOpened) {
  place_->Put("a", "bytes");
  place_->Put("b", "bytes");
  const ObjectIdentity identity = Open("a")->identity();
  place_->Remove("a");
  const auto gone = AnyOf(absl::StatusCode::kNotFound, absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(place_->store().Find(context_, UriOf("a")).status().code(), gone);
  EXPECT_THAT(place_->store().OpenAgain(context_, identity).status().code(), gone);
  const auto folder = place_->store().Find(context_, place_->folder());
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_THAT(folder->folder->Open(context_, "a").status().code(), gone);
}

TEST_P(ObjectContract, List_NamesObjectsInAscendingOrder) {
  for (const char* const name : {"b", "a", "model-2", "model-10", "Z", "a b"}) place_->Put(name, name);
  const auto found = place_->store().Find(context_, place_->folder());
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_NE(found->folder, nullptr);
  EXPECT_EQ(found->object, nullptr);
  const auto names = found->folder->List(context_);
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_THAT(*names, ElementsAre("Z", "a", "a b", "b", "model-10", "model-2"));
  for (const std::string& name : *names) {
    const auto object = found->folder->Open(context_, name);
    ASSERT_TRUE(object.ok()) << object.status();
    EXPECT_EQ((*object)->identity(), Open(name)->identity());
    EXPECT_EQ(Read(**object, 0, name.size()).value_or(""), name);
  }
}

TEST_P(ObjectContract, ListBelow_NamesObjectsInFoldersAndNoHiddenOnes) {
  for (const char* const name : {"b", "a/c/d", "a/b", ".git/config", "a/.cache/x", ".hidden"}) {
    place_->Put(name, name);
  }
  const auto found = place_->store().Find(context_, place_->folder());
  ASSERT_TRUE(found.ok()) << found.status();
  const auto paths = found->folder->ListBelow(context_, 10);
  ASSERT_TRUE(paths.ok()) << paths.status();
  EXPECT_THAT(*paths, ElementsAre("a/b", "a/c/d", "b"));
  const auto object = found->folder->Open(context_, "a/c/d");
  ASSERT_TRUE(object.ok()) << object.status();
  EXPECT_EQ(Read(**object, 0, 5).value_or(""), "a/c/d");
}

TEST_P(ObjectContract, ConcurrentReads_ReturnTheirRanges) {
  const std::string bytes = Numbered(1 << 20);
  place_->Put("a", bytes);
  const auto object = Open("a");
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      for (uint64_t j = 0; j < 16; ++j) {
        const uint64_t offset = (i * 16 + j) * 8000 + i;
        const auto read = Read(*object, offset, 9000);
        EXPECT_TRUE(read.ok()) << read.status();
        EXPECT_TRUE(read.value_or("") == bytes.substr(offset, 9000)) << offset;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(ObjectContract, EndedContext_EndsRead) {
  place_->Put("a", "bytes");
  const auto object = Open("a");
  RequestContext cancelled;
  cancelled.cancellation.Cancel();
  EXPECT_EQ(ReadBytes(cancelled, *object, 0, 5).status().code(), absl::StatusCode::kCancelled);
  const RequestContext late{.deadline = SteadyTime::InfinitePast()};
  EXPECT_EQ(ReadBytes(late, *object, 0, 5).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_P(ObjectContract, Image_IsReadFromSeveralObjects) {
  const std::string a = Numbered(300'000), b = Numbered(200'000);
  place_->Put("a", a);
  place_->Put("b", b);
  const std::string image =
      a.substr(7, 250'000) + b.substr(100, 50'000) + std::string(1000, '\0') + a.substr(3, 9);
  const auto source =
      MakeObjectSource({Open("a"), Open("b")},
                       {{0, 7, 0, 250'000}, {1, 100, 250'000, 50'000}, {0, 3, 301'000, 9}}, image.size());
  ASSERT_TRUE(source.ok()) << source.status();
  std::string read(image.size(), 'x');
  const HostSpan destination = std::as_writable_bytes(std::span(read));
  const auto digests = (*source)->Fetch(context_, {0, {0, image.size()}, {&destination, 1}});
  ASSERT_TRUE(digests.ok()) << digests.status();
  EXPECT_TRUE(read == image);
  EXPECT_EQ((*digests)->xxh3, ComputeDigest(std::as_bytes(std::span(image))));
}

}  // namespace tensorcast::testing
