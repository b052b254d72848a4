#include "otel/api/trace_file.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/log/log.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "otel/api/json_text.h"

namespace tensorcast::otel {
namespace {

// The writer is woken when this much waits; below it, only closing the file writes.
constexpr size_t kWriteBytes = 64 << 10;

// The kernel's id, as other tools show it. The system call is made once for each thread.
int ThreadId() {
  thread_local const int id = static_cast<int>(syscall(SYS_gettid));
  return id;
}

double Micros(SpanTime time) {
  return std::chrono::duration<double, std::micro>(time.time_since_epoch()).count();
}

void AppendValue(std::string& out, const AttributeValue& value) {
  switch (value.type()) {
    case AttributeValue::Type::kBool:
      out += value.as_bool() ? "true" : "false";
      return;
    case AttributeValue::Type::kInt:
      absl::StrAppend(&out, value.as_int());
      return;
    case AttributeValue::Type::kDouble:
      // JSON has no infinities.
      out += std::isfinite(value.as_double()) ? absl::StrFormat("%.17g", value.as_double()) : "null";
      return;
    case AttributeValue::Type::kString:
      AppendJsonString(out, value.as_string());
      return;
  }
}

void AppendMember(std::string& out, std::string_view key, const AttributeValue& value) {
  if (!out.empty()) out += ',';
  AppendJsonString(out, key);
  out += ':';
  AppendValue(out, value);
}

std::string Members(std::span<const Attribute> attributes) {
  std::string members;
  for (const Attribute& attribute : attributes) AppendMember(members, attribute.key.name(), attribute.value);
  return members;
}

std::string_view Component(std::string_view name) { return name.substr(0, name.find('/')); }

}  // namespace

// The thread that ends a span appends to a buffer under the mutex; another thread takes the whole buffer and
// writes it, so that spans never wait for the disk. What does not fit is dropped and counted.
//
// The file is a JSON array that is only closed by Close. Viewers read one without its end, too, so a process
// that dies leaves a file that can be looked at.
class TraceFile::Writer {
 public:
  Writer(int fd, std::string path, const TraceFileOptions& options)
      : fd_(fd), path_(std::move(path)), max_buffered_bytes_(options.max_buffered_bytes) {
    std::string name = "[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":";
    absl::StrAppend(&name, getpid(), ",\"args\":{\"name\":");
    AppendJsonString(name, options.process_name);
    buffer_ = absl::StrCat(name, "}}");
    thread_ = std::thread([this] { Run(); });
  }
  ~Writer() { Close().IgnoreError(); }

  // One event: what stands between its braces.
  void Write(std::string_view event) {
    absl::MutexLock lock(&mutex_);
    if (closing_) return;
    if (buffer_.size() + event.size() > max_buffered_bytes_) {
      ++dropped_;
      return;
    }
    absl::StrAppend(&buffer_, ",\n{", event, "}");
  }

  absl::Status Close() {
    {
      absl::MutexLock lock(&mutex_);
      if (closing_) {
        // Another thread closes it: this call returns when that is done.
        mutex_.Await(absl::Condition(&closed_));
        return status_;
      }
      if (dropped_ > 0) {
        absl::StrAppend(&buffer_, ",\n{\"name\":\"dropped events\",\"ph\":\"M\",\"pid\":", getpid(),
                        ",\"args\":{\"count\":", dropped_, "}}");
      }
      buffer_ += "\n]\n";
      closing_ = true;
    }
    thread_.join();
    absl::MutexLock lock(&mutex_);
    if (close(fd_) != 0 && status_.ok()) status_ = Error(errno, "close");
    closed_ = true;
    return status_;
  }

  uint64_t dropped() const {
    absl::MutexLock lock(&mutex_);
    return dropped_;
  }

 private:
  absl::Status Error(int error, std::string_view what) const {
    return absl::ErrnoToStatus(error, absl::StrCat(what, " the trace file ", path_));
  }

  void Run() {
    std::string batch;
    bool last = false;
    while (!last) {
      {
        absl::MutexLock lock(&mutex_);
        auto due = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
          return closing_ || buffer_.size() >= kWriteBytes;
        };
        mutex_.Await(absl::Condition(&due));
        // Both strings keep their memory for the next round.
        batch.swap(buffer_);
        last = closing_;
      }
      absl::Status written = WriteAll(batch);
      batch.clear();
      absl::MutexLock lock(&mutex_);
      status_.Update(written);
    }
  }

  absl::Status WriteAll(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t count = write(fd_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return Error(errno, "write");
      bytes.remove_prefix(static_cast<size_t>(count));
    }
    return absl::OkStatus();
  }

  const int fd_;
  const std::string path_;
  const size_t max_buffered_bytes_;
  mutable absl::Mutex mutex_;
  std::string buffer_ ABSL_GUARDED_BY(mutex_);
  uint64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

// A scoped span is one complete event on its thread's track. One that may end anywhere is a pair of
// asynchronous events, which viewers group by their id: the trace's.
// The event is formatted on the thread that ends the span: a slow disk costs the writer's thread, not this
// one.
class TraceFile::Record final : public SpanRecord {
 public:
  Record(std::shared_ptr<Writer> writer, const SpanStart& start, const TraceContext& context)
      : writer_(std::move(writer)),
        name_(start.name),
        start_(OrNow(start.time)),
        scoped_(start.scoped),
        thread_(ThreadId()),
        trace_id_(context.TraceIdHex()),
        arguments_(Members(start.attributes)) {
    AppendMember(arguments_, "trace_id", trace_id_);
    AppendMember(arguments_, "span_id", context.SpanIdHex());
    if (start.parent->IsValid() && !start.parent->IsUnstarted()) {
      AppendMember(arguments_, "parent_span_id", start.parent->SpanIdHex());
    }
    for (const SpanLink& link : start.links) AddLink(link);
  }

  void SetAttribute(std::string_view key, const AttributeValue& value) override {
    AppendMember(arguments_, key, value);
  }

  void AddEvent(std::string_view name, std::span<const Attribute> attributes, SpanTime time) override {
    // "i" and "n" are instants: on a thread's track, and of an asynchronous span.
    std::string event = Head(name, scoped_ ? "i" : "n", OrNow(time));
    absl::StrAppend(&event, scoped_ ? ",\"s\":\"t\"" : "", ",\"args\":{", Members(attributes), "}");
    writer_->Write(event);
  }

  void AddLink(const SpanLink& link) override {
    AppendMember(arguments_, absl::StrCat("link.", links_++),
                 absl::StrCat(link.context.TraceIdHex(), "/", link.context.SpanIdHex()));
  }

  void SetError(std::string_view type, std::string_view message) override {
    AppendMember(arguments_, attr::kErrorType.name(), type);
    AppendMember(arguments_, attr::kExceptionMessage.name(), message);
  }

  void End(SpanTime time) override {
    const SpanTime end = OrNow(time);
    if (scoped_) {
      std::string event = Head(name_, "X", start_);
      absl::StrAppendFormat(&event, ",\"dur\":%.3f,\"args\":{%s}", Micros(end) - Micros(start_), arguments_);
      writer_->Write(event);
      return;
    }
    writer_->Write(absl::StrCat(Head(name_, "b", start_), ",\"args\":{", arguments_, "}"));
    writer_->Write(Head(name_, "e", end));
  }

 private:
  // What every event begins with. Times are in microseconds, as the Trace Event Format has them.
  std::string Head(std::string_view name, std::string_view phase, SpanTime time) const {
    std::string head = "\"name\":";
    AppendJsonString(head, name);
    head += ",\"cat\":";
    AppendJsonString(head, Component(name_));
    absl::StrAppendFormat(&head, ",\"ph\":\"%s\",\"ts\":%.3f,\"pid\":%d,\"tid\":%d", phase, Micros(time),
                          getpid(), thread_);
    if (!scoped_) absl::StrAppend(&head, ",\"id\":\"", trace_id_, "\"");
    return head;
  }

  const std::shared_ptr<Writer> writer_;
  const std::string name_;
  const SpanTime start_;
  const bool scoped_;
  const int thread_;
  const std::string trace_id_;
  int links_ = 0;
  std::string arguments_;
};

class TraceFile::Sink final : public TraceSink {
 public:
  explicit Sink(std::shared_ptr<Writer> writer) : writer_(std::move(writer)) {}

  std::unique_ptr<SpanRecord> Start(const SpanStart& start, TraceContext& context) override {
    if (!context.IsValid()) context = MakeContext(*start.parent);
    return std::make_unique<Record>(writer_, start, context);
  }
  TraceContext Reserve(const TraceContext& parent) override { return MakeContext(parent); }

 private:
  static TraceContext MakeContext(const TraceContext& parent) {
    if (!parent.IsValid()) return MakeContext(TraceContext::NewRoot());
    TraceContext context = parent.NewChild();
    if (parent.IsUnstarted()) context.trace_state.clear();
    return context;
  }

  const std::shared_ptr<Writer> writer_;
};

TraceFile::TraceFile(std::shared_ptr<Writer> writer)
    : writer_(std::move(writer)), sink_(KeepForever(std::make_unique<Sink>(writer_))) {
  InstallTraceSink(SinkKind::kTraceFile, sink_);
}

absl::StatusOr<std::unique_ptr<TraceFile>> TraceFile::Open(const std::string& path,
                                                           const TraceFileOptions& options) {
  // Non-blocking only to be opened: a FIFO without a reader is an error, not a wait.
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0644);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("create the trace file ", path));
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  return std::unique_ptr<TraceFile>(new TraceFile(std::make_shared<Writer>(fd, path, options)));
}

TraceFile::~TraceFile() {
  if (absl::Status status = Close(); !status.ok()) LOG(ERROR) << status;
}

absl::Status TraceFile::Close() {
  // Spans that are under way keep the writer; what they tell after this is dropped.
  if (internal::InstalledSink(SinkKind::kTraceFile) == sink_) InstallTraceSink(SinkKind::kTraceFile, nullptr);
  return writer_->Close();
}

uint64_t TraceFile::dropped_events() const { return writer_->dropped(); }

}  // namespace tensorcast::otel
