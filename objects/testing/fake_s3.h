// An S3-compatible store in the process of a test: objects of one bucket in path style, in memory, over
// FakeServer. It checks signatures by signing each request itself. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "objects/credentials/credentials.h"
#include "objects/testing/fake_server.h"

namespace tensorcast::objects::testing {

class FakeS3 {
 public:
  struct Options {
    std::string bucket = "bucket";
    std::string region = "us-east-1";  // until Move
    std::optional<Credentials> keys;   // that requests have to be signed with
    bool ignores_if_match = false;
    bool keeps_versions = false;
    int page = 1000;  // names in a page of a list
    // Answers in place of the store, where it gives a reply.
    std::function<std::optional<FakeReply>(const FakeRequest&)> first;
  };
  FakeS3() : FakeS3(Options()) {}
  explicit FakeS3(Options options);

  void Put(const std::string& key, const std::string& bytes);
  void Remove(const std::string& key);
  // From now on requests have to be signed for this region; the reply to another one names it, as AWS's does.
  void Move(const std::string& region);
  FakeServer& server() { return server_; }
  std::string url() const { return server_.url(); }

 private:
  FakeReply Answer(const FakeRequest& request);
  FakeReply Get(FakeRequest request, const std::string& key);
  FakeReply List(const FakeRequest& request);
  // Why the request is not well signed; empty: it is.
  std::string WrongWith(const FakeRequest& request, const std::string& region) const;

  const Options options_;
  absl::Mutex mutex_;
  std::string region_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::map<int, std::string>> objects_ ABSL_GUARDED_BY(mutex_);  // by version
  int versions_ ABSL_GUARDED_BY(mutex_) = 0;
  FakeServer server_;  // the last: it answers from the rest
};

}  // namespace tensorcast::objects::testing
