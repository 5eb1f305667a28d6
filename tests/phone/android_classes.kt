// Stand-ins for Android's classes, with what the sample uses of them, so that it is compiled where no Android SDK is.
// The test splits this text into a file for each package.

package android.content

open class Context {
    val noBackupFilesDir: java.io.File get() = TODO()
    val assets: android.content.res.AssetManager get() = TODO()
    val contentResolver: ContentResolver get() = TODO()
    fun getExternalFilesDir(type: String?): java.io.File? = TODO()
}

class ContentResolver {
    fun openInputStream(uri: android.net.Uri): java.io.InputStream? = TODO()
}

class Intent(action: String) {
    val data: android.net.Uri? get() = TODO()
    fun setType(type: String): Intent = this
    fun getBooleanExtra(name: String, default: Boolean): Boolean = default

    companion object {
        const val ACTION_GET_CONTENT = "android.intent.action.GET_CONTENT"
    }
}

package android.content.res

class AssetManager {
    fun list(path: String): Array<String>? = TODO()
    fun open(path: String): java.io.InputStream = TODO()
}

package android.net

class Uri

package android.os

class Bundle

package android.app

open class Activity : android.content.Context() {
    val intent: android.content.Intent get() = TODO()
    open fun onCreate(state: android.os.Bundle?) {}
    open fun onActivityResult(request: Int, result: Int, data: android.content.Intent?) {}
    fun setContentView(view: android.widget.TextView) {}
    fun startActivityForResult(intent: android.content.Intent, request: Int) {}
    fun runOnUiThread(work: () -> Unit) {}
    fun finish() {}
}

package android.widget

class TextView(context: android.content.Context) {
    var text: CharSequence = ""
}

package android.graphics

class Bitmap {
    fun getPixels(pixels: IntArray, offset: Int, stride: Int, x: Int, y: Int, width: Int, height: Int) {}

    companion object {
        fun createScaledBitmap(from: Bitmap, width: Int, height: Int, filter: Boolean): Bitmap = from
    }
}

object BitmapFactory {
    fun decodeStream(stream: java.io.InputStream): Bitmap? = TODO()
}
