#include "cli/dashboard/event_hub.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/steady_time.h"

namespace tensorcast::dashboard {
namespace {

constexpr int kShare = 20;  // a poll may take this part of the time between two
constexpr absl::Duration kMaxInterval = absl::Seconds(30);

std::string Event(std::string_view name, std::string_view data) {
  // The data is one line, since a line feed in JSON's strings is escaped.
  return absl::StrCat("event: ", name, "\ndata: ", data, "\n\n");
}

}  // namespace

nlohmann::json ErrorDocument(const absl::Status& status) {
  nlohmann::json details = nlohmann::json::array();
  status.ForEachPayload(
      [&](std::string_view type, const absl::Cord&) { details.push_back({{"type", std::string(type)}}); });
  return {{"error",
           {{"code", absl::StatusCodeToString(status.code())},
            {"message", std::string(status.message())},
            {"details", std::move(details)}}}};
}

std::string ToText(const nlohmann::json& document) {
  return document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// A topic is a view with its parameters, and has a poller. Tabs hold its address: the topic lives until the
// last of them has left.
struct EventHub::Topic {
  std::string key;
  std::string view;
  Query query;
  std::thread poller;
  absl::Mutex mutex;
  size_t tabs = 0;  // guarded by the hub's mutex
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  // Documents and problems are counted from 1. The events are made once, for all tabs.
  uint64_t document_number ABSL_GUARDED_BY(mutex) = 0;
  std::shared_ptr<const std::string> document ABSL_GUARDED_BY(mutex);
  std::shared_ptr<const std::string> patch
      ABSL_GUARDED_BY(mutex);  // from the one before; null: none that is worth it
  uint64_t problem_number ABSL_GUARDED_BY(mutex) = 0;
  std::shared_ptr<const std::string> problem ABSL_GUARDED_BY(mutex);
};

EventHub::EventHub(DocumentSource source, std::function<absl::Duration(const std::string&)> interval)
    : source_(std::move(source)), interval_(std::move(interval)) {}
// Every tab has left by now (event_hub.h), and the last tab of a topic joins its poller: no topic is left
// here.
EventHub::~EventHub() = default;

std::unique_ptr<EventHub::Tab> EventHub::Watch(const std::string& view, const Query& query) {
  // Names and values are encoded, so that no value can look like another parameter.
  std::string key = EncodeUrl(view);
  for (const auto& [name, value] : query) absl::StrAppend(&key, "&", EncodeUrl(name), "=", EncodeUrl(value));
  const absl::MutexLock lock(&mutex_);
  // The first tab of a view begins its poller; the last one ends it (Leave).
  std::unique_ptr<Topic>& topic = topics_[key];
  if (topic == nullptr) {
    topic = std::make_unique<Topic>();
    topic->key = key;
    topic->view = view;
    topic->query = query;
    try {
      topic->poller = std::thread([this, polled = topic.get()] { Poll(*polled); });
    } catch (const std::system_error& error) {
      // The topic's tabs get a problem. The next topic of this view tries again.
      const absl::MutexLock topic_lock(&topic->mutex);
      topic->problem_number = 1;
      topic->problem = std::make_shared<const std::string>(
          Event("problem", ToText(ErrorDocument(absl::ResourceExhaustedError(absl::StrCat(
                               "show the view ", view, ": no thread can be started (", error.what(),
                               "); raise the limit of threads, or close other tabs"))))));
    }
  }
  ++topic->tabs;
  return std::unique_ptr<Tab>(new Tab(*this, *topic));
}

size_t EventHub::pollers() const {
  const absl::MutexLock lock(&mutex_);
  return topics_.size();
}

void EventHub::Leave(Topic& topic) {
  std::unique_ptr<Topic> last;
  // The topic is taken out with the hub's lock, so that no new tab finds it, and ended without the lock,
  // since a poll may take its time.
  {
    const absl::MutexLock lock(&mutex_);
    if (--topic.tabs > 0) return;
    const auto found = topics_.find(topic.key);
    last = std::move(found->second);
    topics_.erase(found);
  }
  {
    const absl::MutexLock lock(&last->mutex);
    last->stopping = true;
  }
  if (last->poller.joinable()) last->poller.join();
}

// Runs on the topic's own thread. `source_` is called and the events are made without a lock; the topic's
// mutex is held only to publish them and to wait, so a slow poll never blocks a tab or another view.
void EventHub::Poll(Topic& topic) {
  // What was published last: a document follows only where it differs, or where a problem is over.
  nlohmann::json last;
  std::string last_problem;
  while (true) {
    const SteadyTime begin = SteadyNow();
    const absl::StatusOr<nlohmann::json> made = source_(topic.view, topic.query);
    std::shared_ptr<const std::string> document, patch, problem;
    if (!made.ok()) {
      std::string text = ToText(ErrorDocument(made.status()));
      if (text != last_problem) problem = std::make_shared<const std::string>(Event("problem", text));
      last_problem = std::move(text);
    } else if (*made != last || !last_problem.empty()) {
      const std::string text = ToText(*made);
      if (!last.is_null()) {
        const std::string changes = ToText(nlohmann::json::diff(last, *made));
        // A patch that is not much smaller than the document costs a page more than it saves.
        if (changes.size() < text.size() / 2) {
          patch = std::make_shared<const std::string>(Event("patch", changes));
        }
      }
      document = std::make_shared<const std::string>(Event("document", text));
      last = *made;
      last_problem.clear();
    }
    // The pause grows with the time that a poll takes. One that failed took the time of a timeout, which says
    // nothing about the server's load.
    const absl::Duration fitting = std::min(kShare * (SteadyNow() - begin), kMaxInterval);
    const absl::Duration pause = std::max(interval_(topic.view), made.ok() ? fitting : absl::ZeroDuration());
    const absl::MutexLock lock(&topic.mutex);
    if (document != nullptr) {
      ++topic.document_number;
      topic.document = std::move(document);
      topic.patch = std::move(patch);
    }
    if (problem != nullptr) {
      ++topic.problem_number;
      topic.problem = std::move(problem);
    }
    if (topic.mutex.AwaitWithTimeout(absl::Condition(&topic.stopping), pause)) return;
  }
}

EventHub::Tab::~Tab() { hub_.Leave(topic_); }

std::string EventHub::Tab::Next(absl::Duration timeout) {
  const absl::MutexLock lock(&topic_.mutex);
  const auto news = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(topic_.mutex) {
    return topic_.document_number > document_ || topic_.problem_number > problem_;
  };
  if (!topic_.mutex.AwaitWithTimeout(absl::Condition(&news), timeout)) return "";
  if (topic_.document_number > document_) {
    // A patch leads from one document to the next. A tab that missed one gets the whole document.
    const bool next = document_ > 0 && topic_.document_number == document_ + 1 && topic_.patch != nullptr;
    document_ = topic_.document_number;
    // A problem before this document is over.
    problem_ = topic_.problem_number;
    return next ? *topic_.patch : *topic_.document;
  }
  problem_ = topic_.problem_number;
  return *topic_.problem;
}

}  // namespace tensorcast::dashboard
