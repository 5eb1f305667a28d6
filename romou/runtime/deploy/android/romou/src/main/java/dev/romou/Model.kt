package dev.romou

import java.io.Closeable
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder

/** What went wrong: `code` is one of romou_status in romou.h. */
class ModelException(val code: Int, message: String) : RuntimeException(message)

/** An input or an output. `dtype` is the type of the numbers in its buffer. */
class Tensor(val name: String, val dtype: String, val shape: List<Long>, val bytes: Int)

/** A model that `romou export` wrote. Its first start in a folder takes long: the driver compiles the kernels, and the folder keeps them. */
class Model(folder: File, variant: String? = null) : Closeable {
    private var handle = open(folder.path, variant, null)
    private var isReshaped = false
    var inputs = tensors(true)
        private set
    /** After `reshape`, the outputs of the last run. */
    var outputs = tensors(false)
        private set
    /** The variant and device that run, and the milliseconds of each step of the start, as JSON. */
    val about: String get() = about(handle)

    /** Copy a direct buffer in the device's byte order to the device. */
    fun set(input: String, buffer: ByteBuffer) = set(handle, input, buffer)
    fun set(input: String, numbers: FloatArray) = set(input, buffer(4 * numbers.size).also { it.asFloatBuffer().put(numbers) })
    /** Give an input of a model of several shapes a shape: one of them, or a smaller one if the model pads. The input has to be set again. */
    fun reshape(input: String, vararg shape: Long) {
        reshape(handle, input, shape)
        isReshaped = true
        inputs = tensors(true)
    }
    fun run() {
        run(handle)
        if (isReshaped) outputs = tensors(false)
    }
    fun get(output: String, buffer: ByteBuffer) = get(handle, output, buffer)
    fun floats(output: String): FloatArray {
        val buffer = buffer(outputs.firstOrNull { it.name == output }?.bytes ?: 0)
        get(output, buffer)
        return FloatArray(buffer.capacity() / 4).also { buffer.asFloatBuffer().get(it) }
    }
    override fun close() = close(handle).also { handle = 0 }

    private fun tensors(isInput: Boolean) = List(count(handle, isInput)) {
        val (name, dtype) = names(handle, isInput, it)
        val sizes = sizes(handle, isInput, it)
        Tensor(name, dtype, sizes.drop(1), sizes[0].toInt())
    }

    companion object {
        init { System.loadLibrary("romou_jni") }
        fun buffer(bytes: Int): ByteBuffer = ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder())
        @JvmStatic private external fun open(folder: String, variant: String?, programs: String?): Long
        @JvmStatic private external fun close(handle: Long)
        @JvmStatic private external fun count(handle: Long, isInput: Boolean): Int
        @JvmStatic private external fun names(handle: Long, isInput: Boolean, index: Int): Array<String>
        @JvmStatic private external fun sizes(handle: Long, isInput: Boolean, index: Int): LongArray
        @JvmStatic private external fun set(handle: Long, input: String, buffer: ByteBuffer)
        @JvmStatic private external fun reshape(handle: Long, input: String, shape: LongArray)
        @JvmStatic private external fun run(handle: Long)
        @JvmStatic private external fun get(handle: Long, output: String, buffer: ByteBuffer)
        @JvmStatic private external fun about(handle: Long): String
    }
}
