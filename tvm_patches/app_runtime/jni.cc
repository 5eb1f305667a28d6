// SPDX-License-Identifier: Apache-2.0
//
// romou.h for Java and Kotlin: the functions of dev.romou.Native. Tensors are direct byte buffers, so that nothing is copied on the way.
#include <jni.h>

#include <cstdint>
#include <string>
#include <vector>

#include "java_text.h"
#include "romou.h"

namespace {

/// Return a text as a Java string, or null with a pending exception.
jstring java_text(JNIEnv* env, const char* text) {
  const std::u16string wide = romou::app::utf16_of(text);
  return env->NewString(reinterpret_cast<const jchar*>(wide.data()), static_cast<jsize>(wide.size()));
}

/// Throw dev.romou.ModelException unless `status` is ROMOU_OK. Return whether it is.
bool check(JNIEnv* env, romou_status status) {
  if (status == ROMOU_OK) return true;
  const jclass type = env->FindClass("dev/romou/ModelException");
  if (type == nullptr) return false;  // the JVM throws its own error
  const jmethodID constructor = env->GetMethodID(type, "<init>", "(ILjava/lang/String;)V");
  const jstring message = java_text(env, romou_error());
  if (constructor != nullptr && message != nullptr) env->Throw(static_cast<jthrowable>(env->NewObject(type, constructor, static_cast<jint>(status), message)));
  return false;
}

/// A Java string as UTF-8, or null.
class Text {
 public:
  Text(JNIEnv* env, jstring from) : is_null_(from == nullptr) {
    if (is_null_) return;
    std::u16string wide(static_cast<size_t>(env->GetStringLength(from)), u'\0');
    env->GetStringRegion(from, 0, static_cast<jsize>(wide.size()), reinterpret_cast<jchar*>(wide.data()));
    text_ = romou::app::utf8_of(wide);
  }
  operator const char*() const { return is_null_ ? nullptr : text_.c_str(); }

 private:
  bool is_null_;
  std::string text_;
};

std::vector<int64_t> numbers_of(JNIEnv* env, jlongArray from) {
  std::vector<jlong> numbers(static_cast<size_t>(env->GetArrayLength(from)));
  env->GetLongArrayRegion(from, 0, static_cast<jsize>(numbers.size()), numbers.data());
  return {numbers.begin(), numbers.end()};
}

romou_model* model_of(jlong handle) { return reinterpret_cast<romou_model*>(handle); }

}  // namespace

extern "C" {

JNIEXPORT jlong JNICALL Java_dev_romou_Native_open(JNIEnv* env, jclass, jstring folder, jstring variant, jstring programs) {
  const Text folder_text(env, folder), variant_text(env, variant), programs_text(env, programs);
  const romou_options options{variant_text, programs_text};
  romou_model* model = nullptr;
  check(env, romou_open(folder_text, &options, &model));
  return reinterpret_cast<jlong>(model);
}

JNIEXPORT void JNICALL Java_dev_romou_Native_close(JNIEnv*, jclass, jlong handle) { romou_close(model_of(handle)); }

JNIEXPORT jobjectArray JNICALL Java_dev_romou_Native_tensors(JNIEnv* env, jclass, jlong handle, jboolean is_input) {
  const jclass type = env->FindClass("dev/romou/Tensor");
  if (type == nullptr) return nullptr;  // the JVM throws its own error, here and below
  const jmethodID constructor = env->GetMethodID(type, "<init>", "(Ljava/lang/String;Ljava/lang/String;[JI)V");
  if (constructor == nullptr) return nullptr;
  const size_t count = (is_input ? romou_input_count : romou_output_count)(model_of(handle));
  const jobjectArray tensors = env->NewObjectArray(static_cast<jsize>(count), type, nullptr);
  for (size_t index = 0; tensors != nullptr && index < count; ++index) {
    romou_tensor tensor;
    if (!check(env, (is_input ? romou_input : romou_output)(model_of(handle), index, &tensor))) return nullptr;
    const std::vector<jlong> sides(tensor.shape, tensor.shape + tensor.rank);
    const jlongArray shape = env->NewLongArray(static_cast<jsize>(sides.size()));
    const jstring name = java_text(env, tensor.name), dtype = java_text(env, tensor.stored);
    if (shape == nullptr || name == nullptr || dtype == nullptr) return nullptr;
    env->SetLongArrayRegion(shape, 0, static_cast<jsize>(sides.size()), sides.data());
    const jobject made = env->NewObject(type, constructor, name, dtype, shape, static_cast<jint>(tensor.bytes));
    if (made == nullptr) return nullptr;
    env->SetObjectArrayElement(tensors, static_cast<jsize>(index), made);
    for (const jobject held : {made, static_cast<jobject>(shape), static_cast<jobject>(name), static_cast<jobject>(dtype)}) env->DeleteLocalRef(held);
  }
  return tensors;
}

JNIEXPORT void JNICALL Java_dev_romou_Native_set(JNIEnv* env, jclass, jlong handle, jstring input, jobject buffer) {
  const Text name(env, input);
  check(env, romou_set(model_of(handle), name, env->GetDirectBufferAddress(buffer), static_cast<size_t>(env->GetDirectBufferCapacity(buffer))));
}

JNIEXPORT void JNICALL Java_dev_romou_Native_reshape(JNIEnv* env, jclass, jlong handle, jstring input, jlongArray shape) {
  const Text name(env, input);
  const std::vector<int64_t> sides = numbers_of(env, shape);
  check(env, romou_reshape(model_of(handle), name, sides.data(), sides.size()));
}

JNIEXPORT void JNICALL Java_dev_romou_Native_run(JNIEnv* env, jclass, jlong handle) { check(env, romou_run(model_of(handle))); }

JNIEXPORT void JNICALL Java_dev_romou_Native_get(JNIEnv* env, jclass, jlong handle, jstring output, jobject buffer) {
  const Text name(env, output);
  check(env, romou_get(model_of(handle), name, env->GetDirectBufferAddress(buffer), static_cast<size_t>(env->GetDirectBufferCapacity(buffer))));
}

JNIEXPORT jlong JNICALL Java_dev_romou_Native_decode(JNIEnv* env, jclass, jlong handle, jlongArray tokens) {
  const std::vector<int64_t> ids = numbers_of(env, tokens);
  int64_t next = 0;
  check(env, romou_decode(model_of(handle), ids.data(), ids.size(), &next));
  return next;
}

JNIEXPORT void JNICALL Java_dev_romou_Native_rewind(JNIEnv* env, jclass, jlong handle, jlong count) { check(env, romou_rewind(model_of(handle), static_cast<size_t>(count))); }

JNIEXPORT jstring JNICALL Java_dev_romou_Native_about(JNIEnv* env, jclass, jlong handle) { return java_text(env, romou_about(model_of(handle))); }

}  // extern "C"
