#include "cli/config/config.h"

#include <fcntl.h>
#include <google/protobuf/descriptor.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <cerrno>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/posix/unique_fd.h"
#include "base/status.h"
#include "cli/config/schema.h"

namespace tensorcast::config {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr size_t kLongestFile = 1 << 20;
constexpr size_t kWidth = 110;  // of help, where it is longer

// Reads one YAML document into a configuration and gathers everything that is wrong with it.
// What was stored before a mistake was found stays in the configuration, which is then thrown away.
class YamlReader {
 public:
  explicit YamlReader(std::string_view name) : name_(name) {}

  void ReadSection(const YAML::Node& node, const std::string& path, Message& section) {
    if (node.IsNull()) return;  // an empty file, or "daemon:" with nothing under it
    if (!node.IsMap()) return Fail(node, path, "a section with keys is expected here");
    std::set<std::string> seen;
    for (const auto& entry : node) {
      const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
      const std::string key_path = path.empty() ? key : absl::StrCat(path, ".", key);
      const FieldDescriptor* field = section.GetDescriptor()->FindFieldByName(key);
      // An unknown key is an error and not a warning: it may be a slip in a key of security.
      if (field == nullptr) {
        Fail(entry.first, key_path, UnknownKey(*section.GetDescriptor(), path, key).message());
      } else if (!seen.insert(key).second) {
        Fail(entry.first, key_path, "this key is written twice; remove one of them");
      } else {
        ReadField(entry.second, key_path, section, *field);
      }
    }
  }

  std::vector<std::string> TakeErrors() { return std::move(errors_); }

 private:
  void ReadField(const YAML::Node& node, const std::string& path, Message& section,
                 const FieldDescriptor& field) {
    if (field.is_repeated()) return ReadList(node, path, section, field);
    if (field.message_type() != nullptr) {
      return ReadSection(node, path, *section.GetReflection()->MutableMessage(&section, &field));
    }
    if (node.IsNull()) return;  // "key:" keeps the default
    if (!node.IsScalar()) return Fail(node, path, "a single value is expected here");
    Check(node, path, SetScalar(section, field, node.Scalar()));
  }

  void ReadList(const YAML::Node& node, const std::string& path, Message& section,
                const FieldDescriptor& field) {
    if (node.IsNull()) return;
    // Labels may be written as a map, too.
    if (node.IsMap() && KeyOf(field).form() == v1::ConfigKey::PAIRS) {
      return ReadPairs(node, path, section, field);
    }
    if (!node.IsSequence()) return Fail(node, path, "a list is expected here, such as [a, b]");
    // A list in the file replaces the default list; items are appended below.
    section.GetReflection()->ClearField(&section, &field);
    for (const auto& item : node) {
      if (item.IsScalar()) {
        Check(item, path, SetScalar(section, field, item.Scalar()));
      } else {
        Fail(item, path, "a single value is expected in this list");
      }
    }
  }

  // "team: infra" is "team=infra".
  void ReadPairs(const YAML::Node& node, const std::string& path, Message& section,
                 const FieldDescriptor& field) {
    section.GetReflection()->ClearField(&section, &field);
    for (const auto& entry : node) {
      if (entry.first.IsScalar() && entry.second.IsScalar()) {
        Check(entry.second, path,
              SetScalar(section, field, absl::StrCat(entry.first.Scalar(), "=", entry.second.Scalar())));
      } else {
        Fail(entry.second, path, "a name and a single value are expected in this map");
      }
    }
  }

  void Check(const YAML::Node& node, const std::string& path, const absl::Status& status) {
    if (!status.ok()) Fail(node, path, status.message());
  }
  void Fail(const YAML::Node& node, std::string_view path, std::string_view what) {
    errors_.push_back(
        absl::StrCat(name_, ":", node.Mark().line + 1, ": ", path, path.empty() ? "" : ": ", what));
  }

  const std::string name_;
  std::vector<std::string> errors_;
};

std::vector<std::string> ReadYaml(std::string_view yaml, std::string_view name, v1::Config& config) {
  try {
    YamlReader reader(name);
    reader.ReadSection(YAML::Load(std::string(yaml)), "", config);
    return reader.TakeErrors();
    // The library throws for text that is not YAML; what is wrong in YAML that it can read is gathered above.
  } catch (const YAML::Exception& error) {
    return {absl::StrCat(name, ":", error.mark.line + 1, ": this is not YAML (", error.msg,
                         "); write `key: value` lines")};
  }
}

std::vector<std::string> ApplySets(const std::vector<std::string>& sets, v1::Config& config) {
  std::vector<std::string> errors;
  for (const std::string& set : sets) {
    const size_t equals = set.find('=');
    const absl::Status status =
        equals == std::string::npos
            ? absl::InvalidArgumentError(
                  "a key, \"=\" and a value are expected, as in daemon.host_pool=64GiB")
            : SetByPath(config, std::string_view(set).substr(0, equals), set.substr(equals + 1));
    if (!status.ok()) errors.push_back(absl::StrCat("--set ", set, ": ", status.message()));
  }
  return errors;
}

// A key is a text, a truth value or a number, and a list has texts: schema_test holds config.proto to that.
std::string ValueText(const Message& section, const FieldDescriptor& field) {
  const google::protobuf::Reflection& values = *section.GetReflection();
  YAML::Emitter out;
  if (field.is_repeated()) {
    out << YAML::Flow << YAML::BeginSeq;
    for (int i = 0; i < values.FieldSize(section, &field); ++i) {
      out << values.GetRepeatedString(section, &field, i);
    }
    out << YAML::EndSeq;
  } else if (field.has_presence() && !values.HasField(section, &field)) {
    out << YAML::Null;  // reads back as not set
  } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
    out << values.GetBool(section, &field);
  } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
    out << values.GetInt32(section, &field);
  } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
    out << values.GetDouble(section, &field);
  } else {
    out << values.GetString(section, &field);
  }
  return out.c_str();
}

// Appends the help as comment lines above the key, broken at kWidth.
void AppendHelp(std::string_view help, std::string_view indent, std::string& yaml) {
  std::string line;
  for (const std::string_view word : absl::StrSplit(help, ' ')) {
    if (!line.empty() && indent.size() + 2 + line.size() + 1 + word.size() > kWidth) {
      absl::StrAppend(&yaml, indent, "# ", line, "\n");
      line.clear();
    }
    absl::StrAppend(&line, line.empty() ? "" : " ", word);
  }
  absl::StrAppend(&yaml, indent, "# ", line, "\n");
}

// The configuration as a file that reads back as the same configuration, with each key's help above it.
void AppendSection(const Message& section, const std::string& indent, std::string& yaml) {
  for (int i = 0; i < section.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *section.GetDescriptor()->field(i);
    if (field.message_type() == nullptr) {
      AppendHelp(HelpOf(field), indent, yaml);
      absl::StrAppend(&yaml, indent, field.name(), ": ", ValueText(section, field), "\n");
    } else {
      absl::StrAppend(&yaml, indent, field.name(), ":\n");
      AppendSection(section.GetReflection()->GetMessage(section, &field), indent + "  ", yaml);
    }
  }
}

// The next bytes; waits for those of a pipe.
absl::StatusOr<size_t> ReadSome(int file, const std::string& path, char* bytes, size_t size) {
  while (true) {
    const ssize_t got = read(file, bytes, size);
    if (got >= 0) return static_cast<size_t>(got);
    if (errno != EINTR && errno != EAGAIN) return ErrnoStatus(errno, "read", path);
    pollfd polled{.fd = file, .events = POLLIN, .revents = 0};
    if (poll(&polled, 1, -1) < 0 && errno != EINTR) return ErrnoStatus(errno, "wait for", path);
  }
}

// The whole of a configuration file, or of what a pipe brings. A device or a file without end is not one.
absl::StatusOr<std::string> ReadFile(const std::string& path) {
  // O_NONBLOCK is for the open alone: without it the open of a pipe that has no writer hangs before its type
  // can be checked. Reads then wait in ReadSome.
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return ErrnoStatus(errno, "open", path);
  struct stat found;
  if (fstat(file.get(), &found) != 0) return ErrnoStatus(errno, "stat", path);
  if (!S_ISREG(found.st_mode) && !S_ISFIFO(found.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("read ", path, ": the path is not a regular file or a pipe; name a YAML file"));
  }
  // One byte more than is allowed, which tells a file of the limit from a longer one.
  std::string content(kLongestFile + 1, '\0');
  size_t size = 0;
  while (size < content.size()) {
    TC_ASSIGN_OR_RETURN(const size_t got,
                        ReadSome(file.get(), path, content.data() + size, content.size() - size));
    if (got == 0) break;
    size += got;
  }
  if (size > kLongestFile) {
    return absl::InvalidArgumentError(
        absl::StrCat("read ", path, ": the file has more than ", kLongestFile,
                     " bytes, the max of a configuration; name another file, or shorten this one"));
  }
  if (size == 0 && S_ISFIFO(found.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "read ", path,
        ": the path is a pipe that no process has written to; name a file, or write to the pipe"));
  }
  content.resize(size);
  return content;
}

}  // namespace

absl::StatusOr<v1::Config> Parse(std::string_view yaml, std::string_view name,
                                 const std::vector<std::string>& sets) {
  // Defaults, then the file, then --set. All errors are gathered, so that one run shows every mistake.
  v1::Config config = Defaults();
  std::vector<std::string> errors = ReadYaml(yaml, name, config);
  // After the file, and over it.
  for (std::string& error : ApplySets(sets, config)) errors.push_back(std::move(error));
  if (!errors.empty()) return absl::InvalidArgumentError(absl::StrJoin(errors, "\n"));
  return config;
}

absl::StatusOr<v1::Config> Load(const LoadOptions& options) {
  if (options.path.empty()) return Parse("", "", options.sets);
  TC_ASSIGN_OR_RETURN(const std::string yaml, ReadFile(options.path));
  return Parse(yaml, options.path, options.sets);
}

std::string ToYaml(const Message& section) {
  std::string yaml;
  AppendSection(section, "", yaml);
  return yaml;
}

}  // namespace tensorcast::config
